"""Which queries an output takes."""

import pytest

import millstream as ms
from millstream.settings import MillstreamError


class Click(ms.Event):
    user: str


@pytest.fixture
def given():
    app = ms.App("app")
    return app, app.topic("clicks", Click), app.table("users", source=ms.postgres("ops", table="users"))


def test_a_view_takes_anything(given):
    app, clicks, users = given
    app.view(users, key="user", name="one")(lambda u: u)
    app.view(users, clicks, key="user", name="two")(lambda u, c: u)
    assert [i.name for i in app.queries["two"].states] == ["users"]
    assert [i.name for i in app.queries["two"].streams] == ["clicks"]


def test_tables_alone_bring_no_events(given):
    app, _, users = given
    for declare in (
        app.stream(users, to="out", name="s"),
        app.alert(users, to="out", name="a"),
        app.alert(users, to="out", name="b", latency="micro-batch"),
    ):
        with pytest.raises(MillstreamError, match=r"tables alone.*Keep the result as a view.*or name a topic"):
            declare(lambda u: u)


def test_a_table_in_real_time(given):
    app, clicks, users = given
    with pytest.raises(MillstreamError, match=r"cannot follow the table .users.*micro-batch"):
        app.alert(clicks, users, to="out", name="a")(lambda c, u: c)
    app.alert(clicks, users, to="out", name="b", latency="micro-batch")(lambda c, u: c)
