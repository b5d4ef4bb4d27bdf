"""Replacing files: whole or not at all, whatever happens on the way."""

from __future__ import annotations

import os
import stat
import threading

import pytest

from millstream.settings import files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    return path


def test_the_new_content_has_its_mode_whatever_the_umask_says(path):
    before = os.umask(0o077)
    try:
        files.replace(path, b"new", mode=0o644)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    files.replace(path, b"newer")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_content_and_name_are_synced_in_this_order(path, monkeypatch):
    done = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}"))), fsync(fd))
    )
    monkeypatch.setattr(os, "rename", lambda a, b: (done.append("rename"), rename(a, b)))
    files.replace(path, b"new", before=lambda: done.append("before"))
    assert done == [f"state.json.{threading.get_ident()}.tmp", "before", "rename", path.parent.name]
    done.clear()
    files.replace(path, b"newer", sync=False)
    assert done == ["rename"]


@pytest.mark.parametrize("call", ["pwrite", "fsync", "rename"])
def test_what_fails_leaves_the_old_content_and_nothing_else(path, monkeypatch, call):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(OSError, match="No space left"):
        files.replace(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == [path.name]


def test_a_disk_that_takes_a_little_at_a_time(path, monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, bytes(data)[:2], position))
    files.replace(path, b"a longer text")
    assert path.read_bytes() == b"a longer text"


def test_a_disk_that_takes_nothing_more(path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    with pytest.raises(OSError, match="took no more bytes"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(path):
    other = path.with_name("other")
    other.write_bytes(b"other")
    path.with_name(f"state.json.{threading.get_ident()}.tmp").symlink_to(other)
    with pytest.raises(OSError):
        files.replace(path, b"new")
    assert other.read_bytes() == b"other"


def test_threads_at_once(path):
    contents = [bytes([n]) * 100_000 for n in range(4)]

    def write(content):
        for _ in range(20):
            files.replace(path, content, sync=False)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in [b"old", *contents]
    assert path.read_bytes() in contents
