"""The demo's data folder: interrupted runs go on, finished ones make room, and nobody else's data is touched."""

import pytest

from millstream.demo import folder
from millstream.demo.folder import Record
from millstream.demo.options import Options
from millstream.settings import MillstreamError

OPTIONS = Options(days=3, bad=5)


@pytest.fixture
def said():
    return []


def started(data, said, options=OPTIONS):
    resumed = folder.take(data, options, said.append)
    folder.begin(data, options)
    return resumed


def test_a_first_run_begins(tmp_path, said):
    assert not started(tmp_path / "new", said)
    assert folder.read(tmp_path / "new") == Record(3, 5, 0)


def test_an_interrupted_run_goes_on(tmp_path, said):
    started(tmp_path, said)
    (tmp_path / "log").mkdir()
    assert started(tmp_path, said, Options(days=3, bad=5, speed=3600.0))  # another speed is the same input
    assert (tmp_path / "log").is_dir()


@pytest.mark.parametrize("finished", [True, False])
def test_room_is_made_for_another_run(tmp_path, said, finished):
    started(tmp_path, said)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "segment").touch()
    if finished:
        folder.finish(tmp_path, OPTIONS)
    assert not started(tmp_path, said, OPTIONS if finished else Options(days=4, bad=5))
    assert not (tmp_path / "log").exists()
    assert bool(said) is not finished  # losing an interrupted run is worth a word


def test_somebody_elses_folder_is_left_alone(tmp_path, said):
    (tmp_path / "precious").touch()
    with pytest.raises(MillstreamError, match="something else than a demo"):
        folder.take(tmp_path, OPTIONS, said.append)
    assert (tmp_path / "precious").exists()


def test_a_record_of_another_version_is_a_finished_run(tmp_path):
    (tmp_path / folder.FILE).write_text('{"version": 99}')
    assert folder.read(tmp_path).finished
    (tmp_path / folder.FILE).write_text("{")
    assert folder.read(tmp_path).finished
