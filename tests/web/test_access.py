"""One-time tokens and the sessions that they are exchanged for."""

from millstream.web.access import MAX_LINKS, MAX_SESSIONS, Access


def test_a_token_works_once():
    access = Access(8080)
    token = access.new_token()
    session = access.redeem(token)
    assert session and access.knows(session)
    assert access.redeem(token) is None
    assert access.knows(session)


def test_what_was_not_issued_does_not_work():
    access = Access(8080)
    token = access.new_token()
    assert access.redeem("") is None
    assert access.redeem(token[:-1]) is None
    assert not access.knows(token)
    assert not access.knows(None)
    assert not access.knows("")


def test_links_and_sessions_are_bounded():
    access = Access(8080)
    first, *_, last = [access.new_token() for _ in range(MAX_LINKS + 1)]
    assert access.redeem(first) is None
    oldest = access.redeem(last)
    for _ in range(MAX_SESSIONS):
        newest = access.redeem(access.new_token())
    assert not access.knows(oldest)
    assert access.knows(newest)


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites():
    access = Access(8080)
    cookie = access.set_cookie("secret")
    assert cookie.startswith("millstream-8080=secret;")
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
