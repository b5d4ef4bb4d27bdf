"""Prometheus' text format by values, and the token that opens the page."""

import stat

from millstream.client.admin import TopicFacts
from millstream.monitor.behind import Behind
from millstream.monitor.forecast import Forecast
from millstream.monitor.watch import Figure, Snapshot
from millstream.serve.metrics import TOKEN, metrics, token
from millstream.serve.positions import Reading
from millstream.serve.state import PartState

BEHIND = Behind('odd"\\\n', "t", 1, 4, 0, 10, 6, 600, 2.5, 2.0)
PAGE = metrics(
    Snapshot(
        12.5,
        (
            Figure(BEHIND, Forecast(30.0, 30.0, 60.0, "time")),
            Figure(Behind("idle", "t", 0, 9, 0, 9, 0, None, None, None)),
        ),
        {("idle", "t", 0): 7},
        frozenset({(BEHIND.group, "t", 1)}),
    ),
    Reading(topics={"t": TopicFacts("t", {0: 3}, {0: 9})}, ends={("t", 0): 9}),
    [
        PartState("ops", "streaming", None, 1.0, {"lag_bytes": 7, "lag_seconds": 1.5, "followers": {"standby": 3}}),
        PartState("new", "snapshot", None, None, {"lag_problem": "does not answer"}),
    ],
)


def test_every_figure_has_its_line():
    odd = r'group="odd\"\\\n",topic="t",partition="1"'
    idle = 'group="idle",topic="t",partition="0"'
    assert [line for line in PAGE.splitlines() if not line.startswith("#")] == [
        f"millstream_group_lag_events{{{odd}}} 6",
        f"millstream_group_lag_events{{{idle}}} 0",
        f"millstream_group_lag_bytes{{{odd}}} 600",
        f"millstream_group_lag_seconds{{{odd}}} 2.5",
        f"millstream_group_loss_in_seconds{{{odd}}} 30.0",
        f"millstream_group_in_danger{{{odd}}} 1",
        f"millstream_group_in_danger{{{idle}}} 0",
        f"millstream_group_missed_events_total{{{idle}}} 7",
        "millstream_lag_measured_timestamp_seconds 12.5",
        'millstream_topic_end_offset{topic="t",partition="0"} 9',
        'millstream_topic_start_offset{topic="t",partition="0"} 3',
        'millstream_capture_lag_bytes{source="ops"} 7',
        'millstream_capture_lag_seconds{source="ops"} 1.5',
        'millstream_capture_follower_lag_bytes{source="ops",follower="standby"} 3',
    ]


def test_every_metric_says_what_it_is():
    lines = PAGE.splitlines()
    assert "# TYPE millstream_group_lag_events gauge" in lines
    assert sum(line.startswith("# HELP ") for line in lines) == sum(line.startswith("# TYPE ") for line in lines) == 14
    assert PAGE.endswith("\n")


def test_the_token_is_made_once_and_is_its_owners(tmp_path):
    made = token(tmp_path)
    assert len(made) == 43
    assert token(tmp_path) == made
    assert stat.S_IMODE((tmp_path / TOKEN).stat().st_mode) == 0o600
    (tmp_path / TOKEN).write_text("")
    assert token(tmp_path) not in ("", made)
