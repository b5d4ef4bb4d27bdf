"""The `[spark]` table: any setting of Spark's, but none that would break us."""

from pathlib import Path

import pytest

from millstream.settings import MillstreamError, Settings
from millstream.settings.spark import REFUSED, options


@pytest.fixture
def load(tmp_path, monkeypatch):
    for name in ("MILLSTREAM_SPARK", "MILLSTREAM_SPARK_OPTIONS", "MILLSTREAM_CHECKPOINTS"):
        monkeypatch.delenv(name, raising=False)

    def load(text):
        (tmp_path / "millstream.toml").write_text(text)
        return Settings.load(folder=tmp_path)

    return load


def test_names_are_spark_s_own_however_they_are_written(load):
    settings = load(
        """
        [spark]
        master = "spark://cluster:7077"
        driver.memory = "2g"
        "spark.executor.cores" = 3
        ui.enabled = true
        [spark.sql]
        shuffle.partitions = 64
        """
    )
    assert settings.spark == "spark://cluster:7077"
    assert settings.spark_options == {
        "spark.driver.memory": "2g",
        "spark.executor.cores": "3",
        "spark.ui.enabled": "true",
        "spark.sql.shuffle.partitions": "64",
    }


def test_a_master_alone_is_text(load):
    assert (load('spark = "local[2]"').spark, load("").spark_options) == ("local[2]", {})


def test_secrets_are_given_by_reference_and_not_shown(load, monkeypatch):
    monkeypatch.setenv("STORE_KEY", "hush")
    settings = load('[spark]\n"hadoop.fs.s3a.secret.key" = "env:STORE_KEY"\n')
    assert settings.spark_options == {"spark.hadoop.fs.s3a.secret.key": "hush"}
    assert "hush" not in repr(settings) + str(settings)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_would_break_us_is_refused_with_the_reason(name):
    name += "x" if name.endswith(".") else ""
    with pytest.raises(MillstreamError, match=rf"it: \[spark\] {name} cannot be set: \w.*Remove it"):
        options({name.removeprefix("spark."): "x"}, "it")


@pytest.mark.parametrize("text", ["driver.memory = []", "driver.memory = 1979-05-27", "driver = [1]"])
def test_values_are_text_numbers_and_truth_values(load, text):
    with pytest.raises(MillstreamError, match=r"\[spark\] spark.driver.* must be text"):
        load(f"[spark]\n{text}\n")


def test_checkpoints_are_a_folder(load):
    assert load('checkpoints = "/mnt/shared"').checkpoint_root == Path("/mnt/shared")
    assert load('checkpoints = "file:///mnt/shared"').checkpoint_root == Path("/mnt/shared")
    assert load('data = "/d"').checkpoint_root == Path("/d/checkpoints")
    with pytest.raises(MillstreamError, match="must be a folder that the driver and every worker have"):
        load('checkpoints = "s3a://bucket/x"')
