"""The steps between an application's processes: the topics that must exist, and the jars that Spark needs."""

from __future__ import annotations

import time
from collections.abc import Callable

from millstream.client.admin import ensure_topics
from millstream.client.wait import wait_for_kafka
from millstream.monitor.status import forget
from millstream.run.part import Context, Step
from millstream.run.plan import Plan
from millstream.settings import MillstreamError, Settings

_PATIENCE = 30.0  # seconds for a log that was named by address to answer


class _LogAway(Exception):
    """The embedded broker did not answer, or refused; it may have ended just now, so this is tried again."""


def steps(plan: Plan, settings: Settings) -> list[Step]:
    """Return the steps of a plan: "topics", and "jars" when Spark runs."""
    found = [
        Step(
            "topics",
            call=_create_topics(plan, embedded=settings.kafka is None),
            after=plan.names & {"broker"},
            doing=f"creating what is missing of {len(plan.topics)} topics",
        )
    ]
    if "spark" in plan.names:
        found.append(Step("jars", call=fetch_jars, doing="looking for the connector's jars"))
    return found


def _create_topics(plan: Plan, *, embedded: bool) -> Callable[[Context], None]:
    began = time.time()  # this may be called again while the application runs: what its parts said since then stays

    def create(context: Context) -> None:
        assert context.settings.kafka, "the step comes after the broker"
        try:
            wait_for_kafka(context.settings.kafka, _PATIENCE)
            ensure_topics(context.settings.kafka, [(t.name, t.partitions, t.config) for t in plan.topics])
            forget(context.settings.kafka, plan.app, began)
        except MillstreamError as error:
            if embedded:
                raise _LogAway(str(error)) from error
            raise

    return create


def fetch_jars(context: Context) -> None:
    """Make sure of the connector's jars, downloading those that the cache folder lacks."""
    from millstream.spark import jars

    wanted = [jar.name for jar in jars.pinned()]

    def progress(name: str, done: int, total: int) -> None:
        of = f" of {total / 1e6:.1f}" if total else ""
        number = wanted.index(name) + 1 if name in wanted else "?"
        context.progress(f"downloading connector jar {number} of {len(wanted)}, {done / 1e6:.1f}{of} MB")

    jars.fetch(context.settings.cache, progress)
