"""Which requests pass: the Host allow-list, the Origin check and the browser's Sec-Fetch headers."""

import pytest

from millstream.settings import MillstreamError
from millstream.web.origin import allowed_origins, refusal

HOSTS = allowed_origins(8080)


def headers(**more):
    return {"host": "127.0.0.1:8080"} | {k.replace("_", "-"): v for k, v in more.items()}


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LocalHost:8080", "[::1]:8080"])
def test_our_own_names_pass(host):
    assert refusal("GET", {"host": host}, HOSTS) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example:8080", "127.0.0.1", "127.0.0.1:8081", "127.0.0.1.evil.example:8080", "", "127.0.0.1:8080@evil"],
)
def test_a_rebound_name_is_refused(host):
    assert "answers for 127.0.0.1:8080" in refusal("GET", {"host": host}, HOSTS)


def test_port_80_may_be_left_out():
    assert refusal("GET", {"host": "localhost"}, allowed_origins(80)) is None


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8080", "http://127.0.0.1:3000"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_origin_is_refused(origin, method):
    assert "refused" in refusal(method, headers(origin=origin), HOSTS)


def test_our_own_origin_passes():
    assert refusal("POST", headers(origin="http://127.0.0.1:8080", sec_fetch_site="same-origin"), HOSTS) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_subresource_of_another_page_is_refused(site):
    """A page on another port of this machine is "same-site", and cookies do not keep ports apart."""
    assert refusal("GET", headers(sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest="script"), HOSTS)
    assert refusal("POST", headers(sec_fetch_site=site, sec_fetch_mode="navigate", sec_fetch_dest="document"), HOSTS)


def test_a_link_on_another_page_may_be_followed_but_not_framed():
    followed = headers(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert refusal("GET", followed, HOSTS) is None
    assert refusal("GET", followed | {"sec-fetch-dest": "iframe"}, HOSTS)


TUNNELS = allowed_origins(8080, ["http://localhost:9000", "https://Page.example/", "https://other.example:8443"])


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:9000", "http://localhost:9000"),
        ("page.example", "https://page.example"),
        ("page.example:443", "https://page.example"),
        ("other.example:8443", "https://other.example:8443"),
        ("127.0.0.1:8080", "https://page.example"),  # a proxy that puts its own target into Host
    ],
)
def test_a_tunnel_or_proxy_passes_when_it_is_named(host, origin):
    asked = {"host": host, "origin": origin, "sec-fetch-site": "same-origin"}
    assert refusal("POST", asked, TUNNELS) is None
    assert refusal("POST", asked, HOSTS)


@pytest.mark.parametrize(
    "host", ["localhost:9001", "page.example:8080", "evil.example", "xpage.example", "page.example.evil"]
)
def test_other_names_stay_refused(host):
    assert "console_origins" in refusal("GET", {"host": host}, TUNNELS)
    assert refusal("GET", {"host": "127.0.0.1:8080", "origin": f"https://{host}"}, TUNNELS)


@pytest.mark.parametrize(
    "origin", ["*", "https://*.example", "page.example", "https://a/b", "ftp://a", "https://a:99999", "", "https://a@b"]
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(MillstreamError, match="expected console_origins such as"):
        allowed_origins(8080, [origin])


def test_an_origin_in_the_clear_is_refused():
    with pytest.raises(MillstreamError, match="not encrypted"):
        allowed_origins(8080, ["http://page.example"])
