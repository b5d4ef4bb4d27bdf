"""Sign-in by link, what is refused before an endpoint sees it, and the headers of every answer."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millstream.web.access import Access
from millstream.web.guard import MISSING, USED, Guard
from millstream.web.origin import allowed_origins

BASE = "http://127.0.0.1:8080"


class Client:
    """A browser without redirects: one request at a time, cookies kept."""

    def __init__(self, application):
        self._transport = httpx.ASGITransport(application)
        self.cookies = httpx.Cookies()

    def request(self, method, url, headers=None):
        async def send():
            options = {"base_url": BASE, "transport": self._transport, "cookies": self.cookies}
            async with httpx.AsyncClient(**options) as client:
                answer = await client.request(method, url, headers=headers)
                self.cookies = client.cookies
                return answer

        return asyncio.run(send())

    def get(self, url, headers=None):
        return self.request("GET", url, headers)

    def post(self, url, headers=None):
        return self.request("POST", url, headers)


@pytest.fixture
def access():
    return Access(8080)


@pytest.fixture
def client(access):
    async def show(request):
        return PlainTextResponse(f"shown {request.url.path}?{request.url.query}")

    async def kept(_):
        return PlainTextResponse("kept", headers={"cache-control": "max-age=1"})

    application = Starlette(
        routes=[Route("/", show, methods=["GET", "POST"]), Route("/deep", show), Route("/assets/kept", kept)]
    )
    return Client(
        Guard(
            application,
            access=access,
            origins=allowed_origins(8080),
            public=("/assets/", "/open"),
            tokens={"/deep": "sesame"},
        )
    )


def test_without_a_session_nothing_is_shown(client):
    answer = client.get("/")
    assert (answer.status_code, answer.text) == (403, MISSING + "\n")


def test_a_token_is_exchanged_for_a_cookie_and_leaves_the_address(client, access):
    answer = client.get(f"/deep?a=1&token={access.new_token()}&b=2")
    assert (answer.status_code, answer.headers["location"]) == (303, "/deep?a=1&b=2")
    assert "HttpOnly" in answer.headers["set-cookie"] and "SameSite=Strict" in answer.headers["set-cookie"]
    assert client.get("/deep?a=1").text == "shown /deep?a=1"


def test_a_used_token_is_refused_to_others_and_ignored_for_who_is_signed_in(client, access):
    token = access.new_token()
    assert client.get(f"/?token={token}").status_code == 303
    assert client.get(f"/?token={token}").headers["location"] == "/"
    client.cookies.clear()
    answer = client.get(f"/?token={token}")
    assert (answer.status_code, answer.text) == (403, USED + "\n")
    assert "set-cookie" not in answer.headers


def test_a_redirect_stays_on_this_server(client, access):
    answer = client.get(httpx.URL(f"{BASE}//evil.example/x?token={access.new_token()}"))
    assert answer.headers["location"] == "/evil.example/x"


def test_a_link_on_another_sites_page_signs_in_without_a_redirect(client, access):
    """The browser would not send the SameSite=Strict cookie along a redirect that another site began."""
    answer = client.get(
        f'/deep?token={access.new_token()}&q="><script>',
        headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"},
    )
    assert answer.status_code == 200
    assert 'http-equiv="refresh" content="0;url=/deep?q=%22%3E%3Cscript%3E"' in answer.text
    assert client.get("/deep").status_code == 200


def test_a_token_does_not_open_to_another_host_or_origin(client, access):
    token = access.new_token()
    assert client.get(f"/?token={token}", headers={"host": "evil.example"}).status_code == 403
    assert client.get(f"/?token={token}", headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get(f"/?token={token}").status_code == 303


def test_a_post_of_another_origin_is_refused_though_the_cookie_is_there(client, access):
    client.get(f"/?token={access.new_token()}")
    assert client.post("/", headers={"origin": BASE}).status_code == 200
    assert client.post("/", headers={"origin": "http://127.0.0.1:3000"}).status_code == 403


def test_public_paths_need_the_right_host_but_no_session(client):
    assert client.get("/assets/kept").text == "kept"
    assert client.get("/assets/kept", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize("path", ["/", "/assets/kept", "/missing"])
def test_every_answer_carries_the_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == ("max-age=1" if path.startswith("/assets") else "no-store")


def test_broken_cookies_are_no_session(client):
    assert client.get("/", headers={"cookie": 'millstream-8080="; =;;'}).status_code == 403
    assert client.get("/", headers={"cookie": "millstream-8080=guess"}).status_code == 403


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/deep", "Bearer sesame", 200),
        ("/deep", "bearer  sesame ", 200),
        ("/deep", "Bearer sesam", 403),
        ("/deep", "Bearer", 403),
        ("/deep", "Basic sesame", 403),
        ("/deep", "Bearer s\xe9same", 403),
        ("/", "Bearer sesame", 403),
        ("/other", "Bearer ", 403),
    ],
)
def test_a_program_may_read_one_path_with_its_token(client, path, authorization, status):
    assert client.get(path, {"authorization": authorization.encode("latin-1")}).status_code == status


def test_a_token_is_no_way_around_the_other_checks(client):
    headers = {"authorization": "Bearer sesame", "host": "evil.example"}
    assert client.get("/deep", headers).status_code == 403
    assert client.get("/deep", {"authorization": "Bearer sesame", "origin": "http://evil.example"}).status_code == 403
