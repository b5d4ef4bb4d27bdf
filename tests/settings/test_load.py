from pathlib import Path

import pytest

from millstream.settings import MillstreamError, Settings, redact


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith("MILLSTREAM_"):
            monkeypatch.delenv(name)


def test_flags_win_over_environment_over_file(tmp_path, monkeypatch):
    (tmp_path / "millstream.toml").write_text('kafka = "one:1"\npostgres = "dbname=from_file"\nspark = "local[1]"\n')
    monkeypatch.setenv("MILLSTREAM_KAFKA", "two:2")
    monkeypatch.setenv("MILLSTREAM_SPARK", "local[2]")
    settings = Settings.load({"spark": "local[3]", "data": None}, folder=tmp_path)
    assert settings.kafka.bootstrap == "two:2"
    assert settings.postgres == "dbname=from_file"
    assert settings.spark == "local[3]"


def test_kafka_table_has_client_properties_with_secrets_by_reference(tmp_path, monkeypatch):
    (tmp_path / "millstream.toml").write_text(
        '[kafka]\naddress = "k:9093"\n"security.protocol" = "SASL_SSL"\n"sasl.password" = "env:KAFKA_PASSWORD"\n'
    )
    with pytest.raises(MillstreamError, match="KAFKA_PASSWORD, which is not set"):
        Settings.load(folder=tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", "hush")
    kafka = Settings.load(folder=tmp_path).kafka
    assert kafka.client()["sasl.password"] == "hush"
    assert "hush" not in repr(kafka)


def test_a_secret_in_a_file(tmp_path):
    secret = tmp_path / "dsn"
    secret.write_text("host=db password=hush\n")
    (tmp_path / "millstream.toml").write_text(f'postgres = "file:{secret}"\n')
    settings = Settings.load(folder=tmp_path)
    assert settings.postgres == "host=db password=hush"
    assert "hush" not in str(settings) + repr(settings)


def test_children_load_the_same_settings_from_the_environment(tmp_path, monkeypatch):
    (tmp_path / "millstream.toml").write_text(
        'data = "/d"\ncache = "/c"\npostgres = "dbname=x"\ncheckpoints = "/shared"\n'
        '[spark]\nmaster = "local[2]"\ndriver.memory = "2g"\n"spark.sql.shuffle.partitions" = 7\n'
        '[kafka]\naddress = "k:1"\n"security.protocol" = "SSL"\n[sources]\nops = "dbname=ops"\n'
    )
    settings = Settings.load(folder=tmp_path)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.load(folder=tmp_path / "elsewhere") == settings
    assert settings.source("ops") == "dbname=ops"
    assert settings.source("other") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kafak = "x"', "Did you mean kafka"),
        ("data = 3", "data must be a string, got 3"),
        ("sources = 1", "sources must be a table"),
        ("= 1", "not valid TOML"),
        ('[kafka]\n"linger.ms" = "1"', "no address"),
    ],
)
def test_wrong_files_are_refused_with_the_reason(tmp_path, text, message):
    (tmp_path / "millstream.toml").write_text(text)
    with pytest.raises(MillstreamError, match=message):
        Settings.load(folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("host=a password=hush user=b", "host=a password=*** user=b"),
        ("host=a password='hush it' user=b", "host=a password=*** user=b"),
        ("postgresql://me:hush@db/x", "postgresql://me:***@db/x"),
        ("http://127.0.0.1:1/?token=hush", "http://127.0.0.1:1/?token=***"),
        ('Required username="u" password="hu\\"sh";', 'Required username="u" password=***;'),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_redact(text, shown):
    assert redact(text) == shown


def test_a_child_gets_the_settings_and_nothing_beside_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("millstream.toml").write_text('postgres = "dbname=production"\n[sources]\nops = "dbname=production"\n')
    monkeypatch.setenv("MILLSTREAM_KAFKA", "production:9092")
    monkeypatch.setenv("MILLSTREAM_KAFKA_OPTIONS", '{"a": "b"}')
    monkeypatch.setenv("MILLSTREAM_SPARK", "spark://production:7077")
    monkeypatch.setenv("MILLSTREAM_CONSOLE_ORIGINS", "https://production")
    monkeypatch.setenv("MILLSTREAM_SOURCE_OPS", "dbname=production")
    monkeypatch.setenv("MILLSTREAM_SOURCE_SHOP", "dbname=production")
    given = Settings(data=tmp_path / "data", cache=tmp_path / "cache", sources={"ops": "dbname=test"})
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings.inherited() == given


def test_embedded_means_no_address_at_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("millstream.toml").write_text('kafka = "production:9092"\npostgres = "env:NOT_SET"\n')
    monkeypatch.setenv("MILLSTREAM_SPARK", "spark://production:7077")
    monkeypatch.setenv("MILLSTREAM_CACHE", str(tmp_path / "cache"))
    assert Settings.embedded(tmp_path) == Settings(data=tmp_path, cache=tmp_path / "cache")
