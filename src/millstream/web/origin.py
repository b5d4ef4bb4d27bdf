"""Which requests come from our own page: the Host allow-list, the Origin check and the browser's Sec-Fetch headers.

A page of another site may make the browser send requests to 127.0.0.1. With DNS rebinding (a name that first resolves to the
attacker's server, then to 127.0.0.1) it may even read the answers: then the Host header bears the attacker's name. So a request
is answered only when its Host is one of ours, its Origin (if any) is one of ours, and the browser does not say that another
site's page is asking. Pages on other ports of this machine count as other sites: cookies do not keep ports apart.

Ours are the loopback names with the port that is listened on, and the origins that the user names for a tunnel or a proxy.

Fetch metadata: https://www.w3.org/TR/fetch-metadata/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from millstream.settings import MillstreamError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
MAX_ORIGINS = 16
_ORIGIN = re.compile(r"(https?)://(\[[0-9a-f:]+\]|[a-z0-9](?:[a-z0-9.-]{0,252}[a-z0-9])?)(?::([0-9]{1,5}))?", re.ASCII)


def allowed_origins(port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """Return the origins of the page when it listens on loopback at `port`, and those that a tunnel or proxy gives it.

    more: "https://name[:port]", or "http://localhost:port" for the near end of a tunnel. Raises MillstreamError.
    """
    own = {f"http://{name}:{port}" for name in LOOPBACK_NAMES}
    own |= {f"http://{name}" for name in LOOPBACK_NAMES if port == 80}
    named = [_checked(origin) for origin in more]
    if len(named) > MAX_ORIGINS:
        raise MillstreamError(f"expected at most {MAX_ORIGINS} console_origins, got {len(named)}.")
    return frozenset(own) | frozenset(named)


def _checked(origin: str) -> str:
    text = origin.lower().removesuffix("/")
    found = _ORIGIN.fullmatch(text)
    if not found or int(found[3] or 0) > 65_535:
        raise MillstreamError(
            f'expected console_origins such as "https://page.example" or "http://localhost:9000", got {origin!r}.'
        )
    if found[1] == "http" and found[2] not in LOOPBACK_NAMES:
        raise MillstreamError(
            f"console_origins: {origin!r} is not encrypted, so anybody who listens on the way can sign in."
            " Use https:// with a proxy, or http://localhost:PORT with a tunnel."
        )
    return text.removesuffix(":443" if found[1] == "https" else ":80")


def origin_of(headers: Mapping[str, str], origins: frozenset[str]) -> str | None:
    """Return the origin at which the sender of a request sees this server, by its Host, or None when it is none of ours.

    headers: names in lower case.
    """
    host = headers.get("host", "").lower()
    # A proxy may send the standard port along.
    return next((o for o in sorted(origins) if host and host in (name := o.partition("://")[2], f"{name}:443")), None)


def refusal(method: str, headers: Mapping[str, str], origins: frozenset[str]) -> str | None:
    """Return why a request is refused, in words for its sender, or None when it may pass.

    headers: names in lower case. A top-level navigation by GET may come from another site (a link in a chat); it cannot be
    read by that site. Everything else must come from our own page or from a program that is not a browser.
    """
    if origin_of(headers, origins) is None:
        hosts = ", ".join(sorted(o.partition("://")[2] for o in origins))
        asked = headers.get("host", "")[:200] or "a request without Host"
        return (
            f"This server answers for {hosts}, not for {asked!r}."
            ' A tunnel or proxy is allowed by console_origins = ["https://…"] in millstream.toml.'
        )
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in origins:
        return f"Requests of pages from {origin[:200]!r} are refused: only the page that this server sends may ask."
    site = headers.get("sec-fetch-site", "none")
    navigation = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    embedded = headers.get("sec-fetch-dest", "document") != "document"
    if site not in ("none", "same-origin") and (not navigation or embedded):
        return "Requests that another site's page makes are refused: open the address in the browser itself."
    return None
