"""What `millstream demo` does: the flights application under the supervisor, with the tables, the replay and the summary."""

from __future__ import annotations

import sys
import threading
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
from confluent_kafka import KafkaException

from millstream.app import App
from millstream.app.graph import graph
from millstream.app.process import Process
from millstream.client.admin import delete_topic, describe_topics, topic_names
from millstream.client.connect import TIMEOUT_S, admin
from millstream.client.groups import groups
from millstream.demo import folder
from millstream.demo.options import Options
from millstream.demo.summary import Summary, summarize
from millstream.demo.tables import prepare
from millstream.monitor.status import Follower
from millstream.run.engine import Status
from millstream.run.part import Context, Part, Step
from millstream.run.supervisor import Supervisor
from millstream.settings import Kafka, MillstreamError, Settings

SOURCE = "ops"  # the source database that flights.py names
REPLAY = "replay"


@dataclass(frozen=True)
class Demo:
    """What the user asked for.

    replay: what is replayed, and how fast. open: show the console in a browser. keep: leave everything running after the summary.
    reset: delete what an earlier demo left in a log of one's own.
    """

    replay: Options = field(default_factory=Options)
    open: bool = False
    keep: bool = False
    reset: bool = False


def run(
    demo: Demo,
    settings: Settings,
    *,
    say: Callable[[str], None],
    watch: Callable[[Status], None] = lambda status: None,
    progress: Callable[[Mapping[str, Any]], None] = lambda facts: None,
    finished: Callable[[Summary], None] = lambda summary: None,
) -> Summary | None:
    """Run the demo to its end, or to Ctrl-C; return the summary, or None when it was interrupted before.

    say: called with what happens, one line at a time. watch: every change of a part, on the supervisor's thread.
    progress: the replay's facts as they change, on a thread of their own.
    finished: called with the summary, before `keep` waits.
    Call it from the main thread: it handles signals. Raises MillstreamError when something does not work.
    """
    from millstream.demo.flights import app

    resumed = folder.take(settings.data, demo.replay, say)
    if settings.kafka and not resumed:
        clear(app, settings.kafka, reset=demo.reset, say=say)
    folder.begin(settings.data, demo.replay)
    ending = threading.Event()

    def watched(status: Status) -> None:
        if status.state in ("stopping", "stopped", "failed"):
            ending.set()
        watch(status)

    supervisor = Supervisor(app, settings, extra=parts(demo.replay, settings), watch=watched, say=say)
    with supervisor.signals(), supervisor:
        if not supervisor.wait_ready():
            supervisor.wait()
            return None
        say(f"console: {supervisor.console}")
        if demo.open:
            webbrowser.open(supervisor.console)
        with Follower(supervisor.kafka, app.name) as follower:
            follower.subscribe(lambda key, facts: progress(facts) if key[0] == REPLAY and facts else None)
            try:
                supervisor.wait_exit(REPLAY)
            except MillstreamError:
                if ending.is_set():
                    supervisor.wait()
                    return None
                raise
        try:
            summary = summarize(app, demo.replay, supervisor.kafka, supervisor.postgres, progress=say, stop=ending)
        except MillstreamError:
            if ending.is_set():
                supervisor.wait()
                return None
            raise
        folder.finish(settings.data, demo.replay)
        finished(summary)
        if demo.keep:
            say(
                "everything stays running until Ctrl-C; try `millstream topics`, `millstream groups`, `millstream tail`"
            )
            supervisor.wait()
        return summary


def parts(options: Options, settings: Settings) -> list[Part]:
    """Return what the demo adds to the application's own processes: its source tables before capture, and the replayer."""
    embedded = not settings.source(SOURCE)
    return [
        Step(
            "tables",
            call=_prepare_tables,
            after={"postgres"} if embedded else set(),
            before={f"capture-{SOURCE}"},
            doing="filling planes, airlines and airports",
        ),
        Process(
            REPLAY,
            command(options),
            needs=frozenset({"topics", "spark", "deliver", f"capture-{SOURCE}"}),
            ends=True,
            doing="reading the flights",
        ),
    ]


def command(options: Options) -> tuple[str, ...]:
    """Return the replayer's command line."""
    speed = "max" if options.speed is None else str(options.speed)
    words = [sys.executable, "-m", "millstream.demo.replay", "--days", str(options.days), "--speed", speed]
    return (*words, "--bad", str(options.bad), "--seed", str(options.seed))


def clear(app: App, kafka: Kafka, *, reset: bool, say: Callable[[str], None]) -> None:
    """See to it that a log of the user's own holds nothing of an earlier demo: its events and results would be taken for ours.

    Raises MillstreamError naming the topics when there are any with messages and `reset` was not asked for.
    """
    ours = {topic.name for topic in graph(app, Settings()).topics if not topic.name.startswith("_millstream.")}
    there = describe_topics(kafka, sorted(ours & set(topic_names(kafka))))
    filled = [topic.name for topic in there if topic.events]
    if filled and not reset:
        raise MillstreamError(
            f"the log at {kafka.bootstrap} holds topics of an earlier demo, or of somebody else: {', '.join(filled)}."
            " A demo starts with empty ones. Give --reset to delete them, or use another log."
        )
    for topic in there:
        if topic.events:
            say(f"deleting the topic {topic.name} ({topic.events:,} messages)")
            delete_topic(kafka, topic.name)
    stale = [group.name for group in groups(kafka) if group.name.startswith(f"{app.name}.")]
    if stale:
        for name, future in admin(kafka).delete_consumer_groups(stale, request_timeout=TIMEOUT_S).items():
            try:
                future.result(TIMEOUT_S)
            except KafkaException as error:
                raise MillstreamError(
                    f"the consumer group {name} of an earlier demo cannot be deleted: {error.args[0].str()}."
                    " Is that demo still running? End it, and start again."
                ) from error


def _prepare_tables(context: Context) -> None:
    try:
        filled = prepare(context.settings.source(SOURCE))
    except MillstreamError as error:
        if isinstance(error.__cause__, psycopg.OperationalError):
            raise error.__cause__ from None  # the database is away; what is no MillstreamError is tried again
        raise
    context.progress(
        ", ".join(f"{table} {count:,} rows" for table, count in filled.items() if count) or "kept as they are"
    )
