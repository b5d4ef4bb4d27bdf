"""The ASGI middleware that stands before every endpoint: origin checks, sign-in by link, security headers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, parse_qsl, urlencode

from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.web.access import Access
from millstream.web.headers import NOT_STORED, SECURITY
from millstream.web.origin import origin_of, refusal

# Shown instead of a redirect when the link was clicked on another site's page: the browser would not send the new
# SameSite=Strict cookie along a redirect that another site began, but it does on a navigation of our own page.
_FORWARD = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={}"><title>Millstream</title>'
)

USED = "This link has already been used, or is too old. Each link works once."
MISSING = "Open this page with a one-time link."


class Guard:
    """Lets through what `origin.refusal` passes and has a session; `/path?token=…` exchanges a token for one.

    origins: `allowed_origins`.   public: path prefixes that need no session (they still need the right Host).
    tokens: by path, the secret that opens it without a session, as `Authorization: Bearer …`: for programs, again and again.
    refused: makes the answer (status 403) to a browser without a session from a reason; plain text by default.
    """

    def __init__(
        self,
        application: ASGIApp,
        *,
        access: Access,
        origins: frozenset[str],
        public: Collection[str] = (),
        tokens: Mapping[str, str] | None = None,
        refused: Callable[[str], Response] | None = None,
    ) -> None:
        self._application = application
        self._access = access
        self._origins = origins
        self._public = tuple(public)
        self._tokens = dict(tokens or {})
        self._refused = refused or (lambda reason: PlainTextResponse(reason + "\n", 403))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or hand it on (ASGI)."""
        if scope["type"] == "lifespan":
            await self._application(scope, receive, send)
        elif scope["type"] == "http":
            await (self._answer(scope) or self._application)(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _answer(self, scope: Scope) -> ASGIApp | None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if reason := refusal(scope["method"], headers, self._origins):
            return PlainTextResponse(reason + "\n", 403)
        query = scope["query_string"].decode("latin-1")
        tokens = parse_qs(query).get("token")
        if tokens and scope["method"] == "GET":
            return self._sign_in(tokens[0], scope, headers)
        if scope["path"].startswith(self._public) if self._public else False:
            return None
        if self._access.knows(_cookie(headers.get("cookie", ""), self._access.cookie)):
            return None
        if self._bears(scope["path"], headers.get("authorization", "")):
            return None
        return self._refused(MISSING)

    def _bears(self, path: str, authorization: str) -> bool:
        kind, _, given = authorization.partition(" ")
        secret = self._tokens.get(path)
        # Bytes, since comparing text refuses what is not ASCII.
        return (
            bool(secret) and kind.lower() == "bearer" and compare_digest(given.strip().encode(), str(secret).encode())
        )

    def _sign_in(self, token: str, scope: Scope, headers: dict[str, str]) -> Response:
        rest = urlencode([(k, v) for k, v in parse_qsl(scope["query_string"].decode("latin-1")) if k != "token"])
        # `//host` in the path would send the browser to another server.
        clean = "/" + scope["path"].lstrip("/\\") + (f"?{rest}" if rest else "")
        session = self._access.redeem(token)
        if session is None:
            if not self._access.knows(_cookie(headers.get("cookie", ""), self._access.cookie)):
                return self._refused(USED)
            return Response(status_code=303, headers={"location": clean})
        if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            answer = Response(status_code=303, headers={"location": clean})
        else:
            answer = Response(_FORWARD.format(_escape(clean)), media_type="text/html")
        answer.headers["set-cookie"] = self._access.set_cookie(
            session, secure=(origin_of(headers, self._origins) or "").startswith("https:")
        )
        return answer


def _cookie(header: str, name: str) -> str | None:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return None
    return found.value if found else None


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name.lower() for name, _ in message["headers"]}
            more = [header for header in (*SECURITY, NOT_STORED) if header[0] not in own]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return send_with_headers
