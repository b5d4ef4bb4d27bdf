"""`millstream topics`: what topics there are, what is in one, and making and deleting them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millstream.cli.common import Commands, Common, command
from millstream.settings import MillstreamError

if TYPE_CHECKING:
    from millstream.client.admin import TopicFacts

Name = Annotated[str, typer.Argument(metavar="NAME", help="the topic")]
Partitions = Annotated[int | None, typer.Option(min=1, max=10_000, help="how many; default: what the log gives")]
Config = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="a setting by Kafka's name; may be repeated")
]
Yes = Annotated[bool, typer.Option("--yes", help="really")]
All = Annotated[bool, typer.Option("--all", help="list internal topics (_…) too")]
App = Annotated[
    str | None, typer.Option(metavar="NAME", help="only the topics that this application's queries and groups touch")
]


@command(name="list", example="millstream topics --all", shows=("kafka", "data"))
def list_(at: Common, all_: All = False, app: App = None) -> None:
    """List the topics. This is what `topics` alone does."""
    _list(at, all_, app)


@command(example="millstream topics show departures", shows=("kafka", "data"))
def show(at: Common, name: Name) -> None:
    """Show one topic: its partitions, settings and readers. `topics NAME` does it too."""
    _show(at, name)


@command(
    example="millstream topics create departures --partitions 4 --config retention.ms=86400000", shows=("kafka", "data")
)
def create(at: Common, name: Name, partitions: Partitions = None, config: Config = None) -> None:
    """Create a topic."""
    _create(at, name, partitions, config or [])


@command(example="millstream topics delete departures --yes", shows=("kafka", "data"))
def delete(at: Common, name: Name, yes: Yes = False) -> None:
    """Delete a topic with its events, for good."""
    _delete(at, name, yes)


topics = Commands(
    "topics", "The topics: what there is, what is in one, making and deleting them.", (list_, show, create, delete)
)


def _list(at: Common, everything: bool, app: str | None) -> None:
    from millstream.client.admin import describe_topics

    found = describe_topics(at.log)
    if app is not None:
        from millstream.cli.membership import topics_of

        mine = topics_of(at.log, app)
        found = [facts for facts in found if facts.name in mine]
    shown = [facts for facts in found if everything or not facts.name.startswith("_")]
    if at.json:
        at.out.document([_facts(facts) for facts in shown])
        return
    at.out.table(
        ["topic", "partitions", "events", "settings"],
        [(facts.name, facts.partitions, facts.events, _settings(facts)) for facts in shown],
        numbers=("partitions", "events"),
        empty="no topics yet; make one with `millstream topics create NAME`",
    )


def _show(at: Common, name: str) -> None:
    from millstream.client.admin import describe_topics
    from millstream.monitor.lag import all_lags

    [facts] = describe_topics(at.log, [name])
    lags = [lag for lag in all_lags(at.log) if lag.topic == name]
    if at.json:
        readers = [
            {"group": one.group, "partition": one.partition, "committed": one.committed, "lag": one.lag} for one in lags
        ]
        at.out.document({**_facts(facts), "groups": readers})
        return
    at.out.text(f"{facts.name}: {facts.events:,} events in {facts.partitions} partitions")
    for setting, value in sorted(facts.config.items()):
        at.out.text(f"  {setting}={value}")
    at.out.text("")
    groups = sorted({lag.group for lag in lags})
    at.out.table(
        ["partition", "start", "end", "events", *(f"lag of {group}" for group in groups)],
        [
            (p, facts.start[p], end, end - facts.start[p], *_lag_cells(p, groups, lags))
            for p, end in sorted(facts.end.items())
        ],
        numbers=("partition", "start", "end", "events", *(f"lag of {group}" for group in groups)),
    )


def _lag_cells(partition: int, groups: Sequence[str], lags: Sequence[Any]) -> list[int | None]:
    by_group = {lag.group: lag.lag for lag in lags if lag.partition == partition}
    return [by_group.get(group) for group in groups]


def _create(at: Common, name: str, partitions: int | None, config: Sequence[str]) -> None:
    from millstream.client.admin import describe_topics, ensure_topic

    settings = {}
    for setting in config:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise MillstreamError(f"expected --config NAME=VALUE, for example cleanup.policy=compact, got {setting!r}.")
        settings[key.strip()] = value.strip()
    if not ensure_topic(at.log, name, partitions, settings):
        raise MillstreamError(f"the topic {name!r} exists already; `millstream topics {name}` shows it.")
    [facts] = describe_topics(at.log, [name])
    if at.json:
        at.out.document(_facts(facts))
    else:
        at.out.text(f"created {name} with {facts.partitions} partitions{_settings(facts, ': ')}")


def _delete(at: Common, name: str, yes: bool) -> None:
    from millstream.client.admin import delete_topic, describe_topics

    [facts] = describe_topics(at.log, [name])
    if not yes:
        raise MillstreamError(
            f"this would delete {name} with its {facts.events:,} events for good; add --yes if that is meant."
        )
    delete_topic(at.log, name)
    if at.json:
        at.out.document({"deleted": name})
    else:
        at.out.text(f"deleted {name}")


def _settings(facts: TopicFacts, lead: str = "") -> str:
    text = " ".join(f"{name}={value}" for name, value in sorted(facts.config.items()))
    return lead + text if text else ""


def _facts(facts: TopicFacts) -> dict[str, Any]:
    return {
        "name": facts.name,
        "partitions": [{"partition": p, "start": facts.start[p], "end": end} for p, end in sorted(facts.end.items())],
        "events": facts.events,
        "config": dict(facts.config),
    }
