"""Closed segments in a folder or an object store, from which they are read back as if they were here (KIP-405).

A topic with `millstream.archive=URL` (anything that fsspec opens: file:///mnt/archive, s3://bucket/prefix, memory://x)
has each closed segment copied there. Local copies go by `local.retention.ms` and `local.retention.bytes` (-2: as the
topic's own retention), what is in the archive by `retention.ms` and `retention.bytes`. In the archive:

    <URL>/<topic>-<topic id>/<partition>/<base offset in twenty digits>.log, .index     as on disk, see log.py

In the partition's folder the `.index` of an archived segment stays, and `archive.json`, version 1, replaced as a whole,
says what is in the archive (also while the local copy is still there):

    {"version": 1, "segments": [{"base": offset, "url": folder, "size": bytes of the .log, "end": end offset,
      "first": first timestamp, "newest": largest timestamp, "newest_offset": its offset, "gaps": bool, "aborted": number}]}

A crash at any moment leaves a segment here, there, or in both: it is copied, noted, and only then removed here; on its
way out readers lose sight of it first, then it is removed there, then from the note. A copy that was not noted is made
again under the same name.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from millstream.log import failpoints
from millstream.log import index as indexes
from millstream.log.errors import ArchiveError, InvalidConfig, NotHere
from millstream.log.files import File, replace, sync_folder, write_all
from millstream.log.index import Facts, Index

if TYPE_CHECKING:
    from millstream.log.segment import Segment

NAME: Final = "archive.json"
CHUNK: Final = 1024 * 1024
"""Bytes that are fetched at once."""
MAX_CACHED: Final = 64
"""Fetched segments kept open, beside the bound of their bytes: each holds a file descriptor."""
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


class Manifest(msgspec.Struct, frozen=True):
    """The content of archive.json."""

    segments: list[Entry] = []
    version: int = 1


def entry(segment: Segment, url: str) -> Entry:
    """What is to be noted of a segment in the archive folder `url`."""
    facts = segment.facts
    return Entry(
        segment.base,
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
    return found if found.version == 1 else None


def write(folder: Path, segments: list[Entry]) -> None:
    """Replace the note; it survives a power cut."""
    replace(folder / NAME, msgspec.json.encode(Manifest(segments)), point=failpoints.ARCHIVE_NOTE_WRITTEN)


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
    try:
        _filesystem(url)
    except ArchiveError as error:
        raise InvalidConfig(str(error)) from None


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


def _object(segment: Segment | Entry, suffix: str) -> str:
    return f"{segment.base:020d}.{suffix}"


def store(segment: Segment, file: File, index: Index, url: str) -> None:
    """Copy a closed segment and its index into the archive folder `url`. ArchiveError."""
    fs, path = _filesystem(url)
    try:
        fs.makedirs(path, exist_ok=True)
        with fs.open(f"{path}/{_object(segment, 'log')}", "wb") as target:
            position = 0
            while position < segment.size:
                data = os.pread(file.fd, min(CHUNK, segment.size - position), position)
                if not data:
                    raise ArchiveError(f"{segment.name} ends at byte {position} of {segment.size}")
                target.write(data)
                position += len(data)
        failpoints.reach(failpoints.ARCHIVE_COPIED_LOG)
        with fs.open(f"{path}/{_object(segment, 'index')}", "wb") as target:
            target.write(indexes.dump(index, segment.facts))
        if urlsplit(url).scheme in ("file", "local"):
            _sync_local(Path(path), [_object(segment, suffix) for suffix in ("log", "index")])
        fs.invalidate_cache()
        found = fs.size(f"{path}/{_object(segment, 'log')}")
    except ArchiveError:
        raise
    except Exception as error:
        raise ArchiveError(f"{segment.name} cannot be archived in {url}: {error or type(error).__name__}") from error
    if found != segment.size:
        raise ArchiveError(f"{url} holds {found} of the {segment.size} bytes of {segment.name}")
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


def fetch(found: Entry, folder: Path) -> File:
    """The bytes of an archived segment in a nameless file in `folder`, which is gone when nobody holds it. ArchiveError."""
    fs, path = _filesystem(found.url)
    temporary = folder / f"{found.base}.{threading.get_ident()}.tmp"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        file = File(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.unlink(temporary)
        position = 0
        with fs.open(f"{path}/{_object(found, 'log')}", "rb") as source:
            while data := source.read(CHUNK):
                write_all(file.fd, data, position)
                position += len(data)
    except Exception as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise ArchiveError(f"a segment cannot be fetched from {found.url}: {error or type(error).__name__}") from error
    if position != found.size:
        raise ArchiveError(f"{found.url}/{_object(found, 'log')} holds {position} of {found.size} bytes")
    return file


def fetch_index(found: Entry) -> Index | None:
    """The index of an archived segment, from the archive; None when it is missing or damaged there."""
    fs, path = _filesystem(found.url)
    try:
        loaded = indexes.load(fs.cat_file(f"{path}/{_object(found, 'index')}"))
    except Exception:
        return None
    return loaded[0] if loaded is not None and loaded[1].size == found.size else None


class Cache:
    """Fetched segments, the least recently used forgotten first when there are too many bytes or files.

    A segment larger than the bound is kept alone. Safe to use from several threads.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.bytes = 0
        self._found: OrderedDict[Segment, tuple[File, Index]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, segment: Segment) -> tuple[File, Index]:
        """File and index of an archived segment; NotHere when it has to be fetched first."""
        with self._lock:
            found = self._found.get(segment)
            if found is None:
                raise NotHere(f"{segment.name} is in the archive and has to be fetched first", segment)
            self._found.move_to_end(segment)
            return found

    def put(self, segment: Segment, file: File, index: Index) -> None:
        """Keep a fetched segment."""
        with self._lock:
            if segment in self._found:
                return
            self._found[segment] = file, index
            self.bytes += segment.size
            while len(self._found) > 1 and (self.bytes > self.max_bytes or len(self._found) > MAX_CACHED):
                self.bytes -= self._found.popitem(last=False)[0].size

    def drop(self, segment: Segment) -> None:
        """Forget a segment."""
        with self._lock:
            if self._found.pop(segment, None) is not None:
                self.bytes -= segment.size
