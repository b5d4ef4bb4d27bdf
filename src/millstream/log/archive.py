"""Closed segments in a folder or an object store, from which they are read back as if they were here (KIP-405).

A topic with `millstream.archive=URL` (anything that fsspec opens: file:///mnt/archive, s3://bucket/prefix, memory://x)
has each closed segment copied there. Local copies go by `local.retention.ms` and `local.retention.bytes` (-2: as the
topic's own retention), what is in the archive by `retention.ms` and `retention.bytes`. In the archive:

    <URL>/<topic>-<topic id>/<partition>/<base offset in twenty digits>.log, .index     as on disk, see log.py

In the partition's folder the `.index` of an archived segment stays, and `archive.json`, version 1, replaced as a whole,
says what is in the archive (also while the local copy is still there):

    {"version": 1, "segments": [{"base": offset, "url": folder, "size": bytes of the .log, "end": end offset,
      "first": first timestamp, "newest": largest timestamp, "newest_offset": its offset, "gaps": bool, "aborted": number}],
      "crc": crc32c of the list's bytes (absent in notes of the first days)}

A damaged note is made again from the `.index` files that stayed here.

A crash at any moment leaves a segment here, there, or in both: it is copied, noted, and only then removed here; on its
way out readers lose sight of it first, then it is removed there, then from the note. A copy that was not noted is made
again under the same name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from crc32c import crc32c

from millstream.log import failpoints
from millstream.log import index as indexes
from millstream.log.errors import ArchiveError, InvalidConfig
from millstream.log.files import File, replace, sync_folder, write_all
from millstream.log.index import Facts, Index
from millstream.log.scan import Source

NAME: Final = "archive.json"
CHUNK: Final = 8 * 1024 * 1024
"""Bytes that are asked for at once, and in memory: every request to a store has its delay."""
WRITE: Final = 1024 * 1024
"""Bytes that are handed to the store at once."""
RETRY_MS: Final = 10_000
"""After the archive refused something, so long until it is tried again."""

_NEEDS: Final = "millstream.archive needs the package fsspec: pip install 'millstream[archive]'"


class Entry(msgspec.Struct, frozen=True):
    """A segment in the archive; see the top of the file."""

    base: int
    url: str
    size: int
    end: int
    first: int
    newest: int
    newest_offset: int
    gaps: bool
    aborted: int

    @property
    def facts(self) -> Facts:
        """The same, as an index file has it."""
        return Facts(self.size, self.end, self.first, self.newest, self.newest_offset, self.gaps, self.aborted)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of archive.json."""

    segments: list[Entry] = []
    version: int = 1
    crc: int | None = None


def entry(base: int, facts: Facts, url: str) -> Entry:
    """What is to be noted of the segment of offset `base` in the archive folder `url`."""
    return Entry(
        base,
        url,
        facts.size,
        facts.end_offset,
        facts.first_timestamp,
        facts.max_timestamp,
        facts.max_timestamp_offset,
        facts.gaps,
        facts.aborted,
    )


def read(folder: Path) -> Manifest | None:
    """What a partition has in the archive; an empty manifest when nothing, None when the note is damaged."""
    try:
        found = msgspec.json.decode((folder / NAME).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest()
    except (OSError, msgspec.DecodeError):
        return None
    whole = found.crc is None or found.crc == _checksum(found.segments)
    return found if found.version == 1 and whole else None


def _checksum(segments: list[Entry]) -> int:
    found: int = crc32c(msgspec.json.encode(segments))
    return found


def write(folder: Path, segments: list[Entry]) -> None:
    """Replace the note; it survives a power cut."""
    note = Manifest(segments, crc=_checksum(segments))
    replace(folder / NAME, msgspec.json.encode(note), point=failpoints.ARCHIVE_NOTE_WRITTEN)


def from_indexes(folder: Path, bases: Iterable[int], url: str) -> list[Entry]:
    """What can be noted again of segments of which only the index is here, when the note is lost."""
    found = []
    for base in sorted(bases):
        loaded = indexes.load((folder / f"{base:020d}.index").read_bytes())
        if loaded is not None:
            found.append(entry(base, loaded[1], url))
    return found


def wrong_url(value: str) -> str | None:
    """What is wrong with a value of millstream.archive; None when nothing is."""
    if not value:
        return None
    parts = urlsplit(value)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*", parts.scheme) or "://" not in value:
        return "expected a URL such as file:///mnt/archive or s3://bucket/prefix"
    if parts.password is not None:
        return "expected a URL without a password: every client can read this setting; give it in the environment"
    if parts.scheme == "file" and not value.startswith("file:///"):
        return "expected an absolute path: file:///mnt/archive"
    if ".." in parts.path.split("/"):
        return "expected a URL without .."
    return None


def check_available(url: str, allow: Sequence[str]) -> None:
    """InvalidConfig, with what to do, when the archive at `url` is not allowed or cannot be used in this installation.

    `allow` are the URLs below which archives may be; none: anywhere that this process may write.
    """
    if allow and not any(url == each or url.startswith(each.rstrip("/") + "/") for each in allow):
        raise InvalidConfig(
            f"millstream.archive={url} is not below what millstream.archive.allow says: {', '.join(allow)}"
        )
    scheme = url.partition(":")[0]
    try:
        from fsspec.registry import known_implementations, registry  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise InvalidConfig(_NEEDS) from None
    if scheme in registry:
        return
    known = known_implementations.get(scheme)
    if known is None:
        raise InvalidConfig(f"millstream.archive={url}: fsspec knows no {scheme}://")
    # The package is looked for, not loaded, and nothing is connected to: this runs where nothing may block.
    if importlib.util.find_spec(known["class"].partition(".")[0]) is None:
        raise InvalidConfig(f"millstream.archive={url}: {known.get('err', 'its package is not installed')}")


@lru_cache(maxsize=64)
def _filesystem(url: str) -> tuple[Any, str]:
    try:
        import fsspec  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise ArchiveError(_NEEDS) from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except Exception as error:  # each file system has errors of its own, for a missing package or a bad address
        raise ArchiveError(f"the archive {url} cannot be used: {error}") from error
    return fs, path.rstrip("/")


def place(url: str, topic: str, topic_id: object, partition: int) -> str:
    """The folder of a partition in the archive at `url`."""
    return f"{url.rstrip('/')}/{topic}-{topic_id}/{partition}"


def root(url: str) -> str:
    """The archive in which a partition's folder `url` is."""
    return url.rsplit("/", 2)[0]


def _object(found: Entry, suffix: str) -> str:
    return f"{found.base:020d}.{suffix}"


def store(found: Entry, file: File, index: Index, going_on: Callable[[], bool] = lambda: True) -> None:
    """Copy a closed segment and its index to where `found` says. ArchiveError, also when `going_on` says no."""
    fs, path = _filesystem(found.url)
    try:
        fs.makedirs(path, exist_ok=True)
        with fs.open(f"{path}/{_object(found, 'log')}", "wb") as target:
            position = 0
            while position < found.size:
                if not going_on():
                    raise ArchiveError(f"{object_url(found)} is not finished: the log is being closed")
                data = os.pread(file.fd, min(WRITE, found.size - position), position)
                if not data:
                    raise ArchiveError(f"{object_url(found)}: the segment ends at byte {position} of {found.size}")
                target.write(data)
                position += len(data)
        failpoints.reach(failpoints.ARCHIVE_COPIED_LOG)
        with fs.open(f"{path}/{_object(found, 'index')}", "wb") as target:
            target.write(indexes.dump(index, found.facts))
        if urlsplit(found.url).scheme in ("file", "local"):
            _sync_local(Path(path), [_object(found, suffix) for suffix in ("log", "index")])
        fs.invalidate_cache()
        size = fs.size(f"{path}/{_object(found, 'log')}")
    except ArchiveError:
        raise
    except Exception as error:
        raise ArchiveError(f"{object_url(found)} cannot be written: {error or type(error).__name__}") from error
    if size != found.size:
        raise ArchiveError(f"{object_url(found)} holds {size} of {found.size} bytes")
    failpoints.reach(failpoints.ARCHIVE_COPIED)


def _sync_local(folder: Path, names: list[str]) -> None:
    """Have files of an archive on this machine survive a power cut, as an object store's do, before the note relies on them."""
    for name in names:
        fd = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    partition, topic, archive = folder, folder.parent, folder.parent.parent
    for each in (partition, topic, archive):
        sync_folder(each)
    with contextlib.suppress(PermissionError):  # in which the archive's own folder may just have been made
        sync_folder(archive.parent)


def remove(found: Entry) -> None:
    """Remove a segment from the archive; that it is gone already is no error. ArchiveError."""
    fs, path = _filesystem(found.url)
    for suffix in ("log", "index"):
        try:
            fs.rm_file(f"{path}/{_object(found, suffix)}")
        except FileNotFoundError:
            continue
        except Exception as error:
            raise ArchiveError(
                f"a segment cannot be removed from {found.url}: {error or type(error).__name__}"
            ) from error


def fetch(found: Entry, folder: Path, start: int, stop: int) -> File:
    """Bytes `start` to `stop` of an archived segment, at their positions in a nameless file in `folder`. ArchiveError.

    The file has nothing before `start`, and is gone when nobody holds it.
    """
    read = source(found)
    temporary = folder / f"{found.base}.{threading.get_ident()}.tmp"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        file = File(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.unlink(temporary)
        buffer = memoryview(bytearray(min(CHUNK, stop - start)))
        position = start
        while position < stop:
            room = buffer[: stop - position]
            count = read(room, position)
            if count != len(room):
                raise ArchiveError(f"{object_url(found)} holds {position + count} of {found.size} bytes")
            write_all(file.fd, room, position)
            position += count
    except OSError as error:
        raise ArchiveError(f"{object_url(found)} cannot be kept in {folder}: {error.strerror}") from error
    return file


def fetch_index(found: Entry) -> Index | None:
    """The index of an archived segment, from the archive; None when it is missing or damaged there."""
    fs, path = _filesystem(found.url)
    try:
        loaded = indexes.load(fs.cat_file(f"{path}/{_object(found, 'index')}"))
    except Exception:
        return None
    return loaded[0] if loaded is not None and loaded[1] == found.facts else None


def object_url(found: Entry) -> str:
    """Where the bytes of an archived segment are, for messages."""
    return f"{found.url}/{_object(found, 'log')}"


def object_size(found: Entry) -> int | None:
    """Bytes of an archived segment's object; None when there is none. ArchiveError."""
    fs, path = _filesystem(found.url)
    try:
        size: int = fs.info(f"{path}/{_object(found, 'log')}")["size"]
    except FileNotFoundError:
        return None
    except Exception as error:
        raise ArchiveError(f"{object_url(found)} cannot be looked at: {error or type(error).__name__}") from error
    return size


def source(found: Entry) -> Source:
    """Reads an archived segment where it is, a buffer at a time. The source raises ArchiveError."""
    fs, path = _filesystem(found.url)
    name = f"{path}/{_object(found, 'log')}"

    def read(buffer: memoryview, position: int) -> int:
        stop = min(position + len(buffer), found.size)
        try:
            data = fs.cat_file(name, start=position, end=stop)
        except Exception as error:
            raise ArchiveError(f"{object_url(found)} cannot be read: {error or type(error).__name__}") from error
        if len(data) > stop - position:
            raise ArchiveError(f"{object_url(found)}: {len(data)} bytes came where {stop - position} were asked for")
        buffer[: len(data)] = data
        return len(data)

    return read
