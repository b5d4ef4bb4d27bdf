"""The log: a folder of topics, opened by one process at a time.

On disk, format version 1:

    log.json                          {"version": 1, "cluster_id": text, "producer_ids": next id not handed out}
    lock                              locked while the log is open; holds the process id
    clean                             there after a clean shutdown, removed at the next start
    topics/<name>/topic.json          see topic.py
    topics/<name>/<partition>/        see below
    fetched/                          nameless files of what was fetched from an archive; what a crash leaves is removed
    building/, deleted/               topics on their way in and out; what a crash leaves there is removed

A partition's folder holds, for each segment, named by the offset of its first record in twenty digits:

    <offset>.log                      record batches of Kafka's format 2, one after another, nothing else
    <offset>.index                    see index.py; can be computed from the .log
    <offset>.snapshot                 producer states as of this offset, see producers.py; can be computed
    checkpoint                        see checkpoint.py
    archive.json                      which segments are in the archive, see archive.py; their .log may be missing here
    compaction.json, *.cleaned        a compaction under way, see swap.py
    *.tmp                             a file being replaced
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from millstream.log import archive, failpoints, upkeep
from millstream.log.archive import Entry
from millstream.log.config import Defaults, TopicConfig
from millstream.log.errors import (
    InvalidConfig,
    InvalidPartitions,
    LogError,
    LogLocked,
    StorageError,
    TopicExists,
    UnknownFormat,
    UnknownTopic,
)
from millstream.log.fetched import Cache
from millstream.log.files import remove_leftovers, replace, sync_folder
from millstream.log.opened import OpenSegments
from millstream.log.partition import Partition
from millstream.log.topic import (
    Description,
    Topic,
    check_name,
    check_partitions,
    read_description,
    write_description,
)

FORMAT: Final = 1
LOCK_WAIT: Final = 10.0
"""Seconds to wait for a previous process to let go of the folder."""
PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids taken from disk at a time; those left at a crash are never handed out."""

_log: Final = logging.getLogger("millstream.log")


class Identity(msgspec.Struct):
    """The content of log.json."""

    cluster_id: str
    producer_ids: int = 0
    version: int = FORMAT


class Log:
    """An open log. Used from one thread, but for `maintain` and a partition's `flush`, which may block in others."""

    def __init__(
        self, folder: Path, defaults: Mapping[str, str] | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the log in `folder`, making it when there is none, and recover it when it was not closed.

        `defaults` are settings by Kafka's topic or broker names; `clock` gives seconds since the epoch. LogLocked when
        another process holds the folder for ten seconds, UnknownFormat when a later version wrote it, InvalidConfig.
        """
        self.folder = Path(folder)
        self.defaults = Defaults(defaults)
        self.topics: dict[str, Topic] = {}
        self.recovered: list[str] = []
        self._clock = clock
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._has_commit: bool | None = None  # None: to be looked up
        self._opened = OpenSegments(Cache(self.folder / "fetched", self.defaults.archive_cache_bytes))
        self._unflushed: Callable[[Partition], None] | None = None
        self._turn = 0
        self._archive_after: dict[str, int] = {}
        self._archive_turns: dict[str | None, int] = {}
        self._lock_fd = -1
        self._closed = False
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock()
        try:
            self._open()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _lock(self) -> None:
        path = self.folder / "lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    os.close(fd)
                    raise LogLocked(
                        f"{self.folder} is in use by process {holder}: stop it, or use another folder"
                    ) from None
                time.sleep(0.02)
        os.ftruncate(fd, 0)
        with contextlib.suppress(OSError):  # The number is a courtesy: a full disk does not keep the log closed.
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _open(self) -> None:
        now = self._now()
        clean = (self.folder / "clean").exists()
        self._identity = self._identify()
        self._next_producer_id = self._identity.producer_ids
        self.recovered += remove_leftovers(self.folder)
        fetched = self.folder / "fetched"
        self.recovered += remove_leftovers(fetched) if fetched.exists() else []
        for name in ("topics", "building", "deleted"):
            (self.folder / name).mkdir(mode=0o700, exist_ok=True)
        for leftover in (self.folder / "building").iterdir():
            shutil.rmtree(leftover)
            self.recovered.append(f"{leftover}: a topic that was being created, removed")
        for folder in sorted((self.folder / "topics").iterdir()):
            self.recovered += remove_leftovers(folder)
            try:
                description = read_description(folder)
            except (OSError, ValueError) as error:
                self.recovered.append(f"{folder}: no readable topic.json ({error}); the folder is left alone")
                continue
            topic = Topic(folder, description, self.defaults, self._opened, clean=clean, now=now)
            self.recovered += topic.recovered
            self._add(topic)
        # From here on a crash is a crash.
        (self.folder / "clean").unlink(missing_ok=True)
        sync_folder(self.folder)

    def _identify(self) -> Identity:
        path = self.folder / "log.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            identity = Identity(_cluster_id())
            replace(path, msgspec.json.encode(identity), point=failpoints.PRODUCER_IDS_RESERVED)
            return identity
        version = msgspec.json.decode(data, type=dict[str, object]).get("version")
        if version != FORMAT:
            raise UnknownFormat(f"{path} has version {version!r}, this Millstream knows {FORMAT}: install a later one")
        return msgspec.json.decode(data, type=Identity)

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def _add(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._by_id[topic.id] = topic
        self._has_commit = None
        if self._unflushed is not None:
            topic.on_unflushed(self._unflushed)

    def on_unflushed(self, call: Callable[[Partition], None]) -> None:
        """Have `call` called, on the appending thread, after each append that becomes readable only by a flush.

        It should see to `Partition.flush` soon, and then to `Partition.announce`.
        """
        self._unflushed = call
        for topic in self.topics.values():
            topic.on_unflushed(call)

    @property
    def cluster_id(self) -> str:
        """Made once for this folder; 22 characters, as Kafka's."""
        return self._identity.cluster_id

    def topic(self, id: uuid.UUID) -> Topic | None:
        """The topic of this id."""
        return self._by_id.get(id)

    def create(self, name: str, partitions: int, config: Mapping[str, str] | None = None) -> Topic:
        """Make a topic; it is on disk when this returns.

        TopicExists, InvalidTopic, InvalidPartitions, InvalidConfig, or StorageError.
        """
        check_name(name)
        check_partitions(partitions)
        settings = TopicConfig(config, self.defaults.topics)
        if settings.archive:
            archive.check_available(settings.archive, self.defaults.archive_allow)
        overrides = settings.overrides
        if name in self.topics:
            raise TopicExists(f"topic {name} exists already")
        description = Description(_topic_id(), name, partitions, overrides)
        building = self.folder / "building" / str(description.id)
        target = self.folder / "topics" / name
        if target.exists():
            raise StorageError(f"{target} is in the way: it holds no readable topic; move it elsewhere")
        try:
            building.mkdir(mode=0o700)
            for index in range(partitions):
                (building / str(index)).mkdir(mode=0o700)
            write_description(building, description)
            failpoints.reach(failpoints.TOPIC_BUILT)
            os.rename(building, target)
            failpoints.reach(failpoints.TOPIC_MOVED)
            sync_folder(target.parent)
        except OSError as error:
            shutil.rmtree(building, ignore_errors=True)
            raise StorageError(f"topic {name} cannot be created: {error.strerror}") from error
        try:
            topic = Topic(target, description, self.defaults, self._opened, clean=False, now=self._now())
        except OSError as error:
            # Too many open files, or the disk is full: there is no such topic then.
            os.rename(target, self.folder / "deleted" / str(description.id))
            raise StorageError(f"topic {name} cannot be opened: {error.strerror}") from error
        self._add(topic)
        return topic

    def delete(self, name: str) -> None:
        """Delete a topic: gone at once, its files are removed by `maintain`. UnknownTopic."""
        topic = self._known(name)
        del self.topics[name]
        del self._by_id[topic.id]
        self._has_commit = None
        for partition in topic.partitions:
            partition.abandon()
        try:
            os.rename(topic.folder, self.folder / "deleted" / str(topic.id))
            failpoints.reach(failpoints.TOPIC_DELETED)
            sync_folder(self.folder / "topics")
        except OSError as error:
            raise StorageError(f"topic {name} cannot be deleted: {error.strerror}") from error

    def add_partitions(self, name: str, total: int) -> None:
        """Give a topic more partitions, `total` in all. UnknownTopic, InvalidPartitions when it has as many already."""
        topic = self._known(name)
        check_partitions(total)
        present = len(topic.partitions)
        if total <= present:
            raise InvalidPartitions(f"topic {name} has {present} partitions, which cannot become {total}")
        description = msgspec.structs.replace(topic.description, partitions=total)
        try:
            for index in range(present, total):
                folder = topic.folder / str(index)
                # What a crash in the middle of this left here was never part of the topic.
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(mode=0o700)
                topic.open_partition(index, clean=False, now=self._now())
            sync_folder(topic.folder)
            failpoints.reach(failpoints.PARTITIONS_MADE)
            write_description(topic.folder, description)
        except OSError as error:
            topic.drop_partitions(present)
            raise StorageError(f"topic {name} cannot get more partitions: {error.strerror}") from error
        topic.description = description

    def configure(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change a topic's settings, None removes one; in effect and on disk when it returns.

        UnknownTopic, InvalidConfig.
        """
        topic = self._known(name)
        config = topic.config.with_changes(changes)
        if config.archive and config.archive != topic.config.archive:
            archive.check_available(config.archive, self.defaults.archive_allow)
        description = msgspec.structs.replace(topic.description, config=config.overrides)
        write_description(topic.folder, description)
        topic.description = description
        topic.set_config(config)
        self._has_commit = None

    def set_defaults(self, given: Mapping[str, str], *, only_check: bool = False) -> None:
        """Change what topics have where they say nothing themselves, in effect when it returns.

        InvalidConfig when a value is not allowed, or does not go with a topic's own settings; nothing has changed then.
        """
        defaults = Defaults(given)
        configs = {}
        for topic in self.topics.values():
            try:
                configs[topic] = TopicConfig(topic.config.overrides, defaults.topics)
            except InvalidConfig as error:
                raise InvalidConfig(f"topic {topic.name}: {error}") from None
        if only_check:
            return
        self.defaults = defaults
        for topic, config in configs.items():
            topic.set_config(config)
        self._has_commit = None

    def is_commit(self, name: str) -> bool:
        """Whether there is such a topic and its durability is `commit`."""
        topic = self.topics.get(name)
        return topic is not None and topic.config.durability == "commit"

    @property
    def has_commit(self) -> bool:
        """Whether any topic has durability `commit`."""
        if self._has_commit is None:
            self._has_commit = any(topic.config.durability == "commit" for topic in self.topics.values())
        return self._has_commit

    def _known(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name}")
        return topic

    def next_producer_id(self) -> int:
        """A producer id that was never given before and never will be again."""
        if self._next_producer_id >= self._identity.producer_ids:
            reserved = msgspec.structs.replace(
                self._identity, producer_ids=self._identity.producer_ids + PRODUCER_ID_BLOCK
            )
            replace(self.folder / "log.json", msgspec.json.encode(reserved), point=failpoints.PRODUCER_IDS_RESERVED)
            self._identity = reserved
        found = self._next_producer_id
        self._next_producer_id += 1
        return found

    def maintain(self, now_ms: int) -> bool:
        """One bounded step of what is due somewhere: interval sync, checkpoint, retention, compaction, removal.

        Blocks; to be called from one worker thread, again at once while it returns True and every second or so
        otherwise. Trouble in one partition is logged and does not keep the others from their turn.
        """
        if self._closed:
            return False
        partitions = [p for topic in list(self.topics.values()) for p in list(topic.partitions)]
        # A few busy partitions are synced seldom: beside a log that is longer than memory a sync costs more than the appends.
        share = max(
            upkeep.CHECKPOINT_BYTES, upkeep.UNSAVED_BYTES // max(1, sum(p.unsaved_bytes > 0 for p in partitions))
        )
        for _ in range(len(partitions)):
            self._turn = (self._turn + 1) % len(partitions)
            partition = partitions[self._turn]
            try:
                if partition.maintain(now_ms, share):
                    return True
            except LogError as error:
                _log.error("%s", error)
            except OSError as error:
                if not partition.stopping:
                    _log.error("%s: maintenance failed: %s", partition.name, error)
        for folder in (self.folder / "deleted").iterdir():
            if any(folder.glob(f"*/{archive.NAME}")):
                continue  # Its copies in the archive go first: see `archive`.
            shutil.rmtree(folder, ignore_errors=True)
            return True
        return False

    def archives(self) -> set[str]:
        """The archives in which there may be something to do. "" stands for what needs none to be finished."""
        return {p.archive_root for p in self.partitions if p.archive_root} | {root for _, root, _ in self._leaving()}

    def archive(self, now_ms: int, only: str | None = None) -> bool:
        """One bounded step of what archives (or the one of `archives` that is named) are due: a segment copied or removed.

        As `maintain`, on other threads; with a thread for each archive a slow one does not hold up the others.
        """
        if self._closed:
            return False
        partitions = [p for p in self.partitions if p.archive_root and only in (None, p.archive_root)]
        for _ in range(len(partitions)):
            # In turn: a partition that always has something would leave the others none.
            turn = self._archive_turns[only] = (self._archive_turns.get(only, 0) + 1) % len(partitions)
            try:
                if partitions[turn].archive(now_ms):
                    return True
            except (LogError, OSError) as error:
                if not partitions[turn].stopping:
                    _log.error("%s; it is tried again", error)
        for note, root, entries in self._leaving():
            if only not in (None, root) or now_ms < self._archive_after.get(root, 0):
                continue
            try:
                for entry in entries:
                    archive.remove(entry)
                note.unlink()
            except (LogError, OSError) as error:
                self._archive_after[root] = now_ms + archive.RETRY_MS
                _log.error("%s; it is tried again", error)
                continue
            return True
        return False

    def _leaving(self) -> list[tuple[Path, str, list[Entry]]]:
        """The notes of deleted topics whose segments are to leave an archive; the archive, the segments."""
        found = []
        for note in (self.folder / "deleted").glob(f"*/*/{archive.NAME}"):
            entries = (archive.read(note.parent) or archive.Manifest()).segments
            found.append((note, archive.root(entries[0].url) if entries else "", entries))
        return found

    def close(self) -> None:
        """Sync everything, note the clean shutdown and let go of the folder. May be repeated."""
        if self._closed:
            return
        self._closed = True
        clean = True
        try:
            for topic in self.topics.values():
                for partition in topic.partitions:
                    try:
                        partition.close()
                    except (LogError, OSError) as error:
                        clean = False
                        _log.error("%s could not be closed cleanly: %s", partition.name, error)
                    clean = clean and partition.failed is None
            failpoints.reach(failpoints.CLOSE_FLUSHED)
            if clean:
                self._identity.producer_ids = self._next_producer_id
                replace(
                    self.folder / "log.json",
                    msgspec.json.encode(self._identity),
                    point=failpoints.PRODUCER_IDS_RESERVED,
                )
                replace(self.folder / "clean", b"{}", point=failpoints.CLOSE_FLUSHED)
        finally:
            os.close(self._lock_fd)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def partitions(self) -> list[Partition]:
        """All partitions of all topics."""
        return [p for topic in self.topics.values() for p in topic.partitions]


def _topic_id() -> uuid.UUID:
    return uuid.UUID(bytes=_kafka_uuid())


def _cluster_id() -> str:
    return base64.urlsafe_b64encode(_kafka_uuid()).decode().rstrip("=")


def _kafka_uuid() -> bytes:
    # Kafka's tools read a leading hyphen as an option, so Kafka avoids it as well.
    while True:
        found = uuid.uuid4().bytes
        if not base64.urlsafe_b64encode(found).startswith(b"-"):
            return found
