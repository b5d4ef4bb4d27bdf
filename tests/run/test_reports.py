"""What the supervisor reports of its processes."""

from millstream.run import reports
from millstream.run.engine import Status
from millstream.settings import Kafka


class Told:
    """Stands for monitor.status.Reporter, which needs a log."""

    def __init__(self, kafka, app):
        self.app, self.facts, self.closed = app, {}, False
        Told.last = self

    def report(self, kind, name, **facts):
        if name == "broken":
            raise RuntimeError("no log")
        self.facts[kind, name] = facts

    def close(self, timeout):
        self.closed = True


def test_all_that_is_known_is_told_once_the_log_is_up_and_every_change_after(monkeypatch):
    monkeypatch.setattr(reports, "Reporter", Told)
    told = reports.Reports("run", "flights")
    told.changed(Status("broker", "ready", 7, restarts=1))
    told.log_is_up(Kafka("nowhere:1"))
    assert Told.last.facts["process", "broker"] == {
        "state": "ready", "pid": 7, "restarts": 1, "text": "", "memory": None,
    }  # fmt: skip
    told.changed(Status("spark", "restarting", text="killed by SIGKILL"))
    assert Told.last.facts["process", "spark"]["text"] == "killed by SIGKILL"
    told.close(1)
    assert Told.last.closed


def test_a_report_that_fails_harms_nothing(monkeypatch):
    monkeypatch.setattr(reports, "Reporter", Told)
    told = reports.Reports("run", "flights")
    told.log_is_up(Kafka("nowhere:1"))
    told.changed(Status("broken", "ready", 7))
    told.close(0)
    reports.Reports("run", "flights").close(1)
