"""Which requests come from our own page: the Host allow-list, the Origin check and the browser's Sec-Fetch headers.

A page of another site may make the browser send requests to 127.0.0.1. With DNS rebinding (a name that first resolves to the
attacker's server, then to 127.0.0.1) it may even read the answers: then the Host header bears the attacker's name. So a request
is answered only when its Host is one of ours, its Origin (if any) is one of ours, and the browser does not say that another
site's page is asking. Pages on other ports of this machine count as other sites: cookies do not keep ports apart.

Fetch metadata: https://www.w3.org/TR/fetch-metadata/
"""

from __future__ import annotations

from collections.abc import Mapping

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def allowed_hosts(port: int) -> frozenset[str]:
    """Return the Host headers that name this server when it listens on loopback at `port`."""
    return frozenset(f"{name}:{port}" for name in LOOPBACK_NAMES) | (
        frozenset(LOOPBACK_NAMES) if port == 80 else frozenset()
    )


def refusal(method: str, headers: Mapping[str, str], hosts: frozenset[str]) -> str | None:
    """Return why a request is refused, in words for its sender, or None when it may pass.

    headers: names in lower case. A top-level navigation by GET may come from another site (a link in a chat); it cannot be
    read by that site. Everything else must come from our own page or from a program that is not a browser.
    """
    host = headers.get("host", "").lower()
    if host not in hosts:
        return f"This server answers for {', '.join(sorted(hosts))}, not for {host or 'a request without Host'!r}."
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"http://{name}" for name in hosts}:
        return f"Requests of pages from {origin!r} are refused: only the page that this server sends may ask."
    site = headers.get("sec-fetch-site", "none")
    navigation = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    embedded = headers.get("sec-fetch-dest", "document") != "document"
    if site not in ("none", "same-origin") and (not navigation or embedded):
        return "Requests that another site's page makes are refused: open the address in the browser itself."
    return None
