"""One-time tokens and the sessions that they are exchanged for."""

import json

import pytest

from millstream.web.access import LINK_S, MAX_LINKS, MAX_SESSIONS, SESSION_S, Access


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
    assert not cookie.endswith("Secure") and access.set_cookie("secret", secure=True).endswith("Secure")


def test_sessions_and_links_outlive_the_process(tmp_path):
    file = tmp_path / "console.json"
    before = Access(8080, file)
    session, link = before.redeem(before.new_token()), before.new_token()
    after = Access(8080, file)
    assert after.knows(session)
    assert after.knows(after.redeem(link))
    assert before.redeem(link) is None, "it was used elsewhere"
    assert file.stat().st_mode & 0o777 == 0o600
    assert session not in file.read_text() and link not in file.read_text()


def test_another_process_of_the_user_makes_a_link(tmp_path):
    file = tmp_path / "console.json"
    console = Access(8080, file)
    assert not console.knows("x")
    session = console.redeem(Access(0, file).new_token())
    assert console.knows(session)
    file.unlink()
    assert not console.knows(session)


def test_links_and_sessions_end(tmp_path):
    now = [1000.0]
    access = Access(8080, tmp_path / "console.json", clock=lambda: now[0])
    late, session = access.new_token(), access.redeem(access.new_token())
    now[0] += LINK_S + 1
    assert access.redeem(late) is None and access.knows(session)
    now[0] += SESSION_S
    assert not access.knows(session)
    access.redeem(access.new_token())
    assert len(json.loads((tmp_path / "console.json").read_text())["sessions"]) == 1, "the old one is forgotten"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "x",
        "[]",
        "{}",
        "null",
        '{"version": 1, "links": 3, "sessions": {}}',
        '{"version": 9}',
        '{"version": 1, "links": {}, "sessions": {"a": "b"}}',
        "[" * 100_000,
    ],
)
def test_a_file_that_is_not_understood_is_no_key(tmp_path, content):
    file = tmp_path / "console.json"
    file.write_text(content)
    access = Access(8080, file)
    assert not access.knows("a") and access.redeem("a") is None
    assert access.knows(access.redeem(access.new_token()))
