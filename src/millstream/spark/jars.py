"""The jars of Spark's Kafka connector: a pinned set per supported pyspark, checked by SHA-256 and kept in the cache folder."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as remembered
from importlib.metadata import version
from pathlib import Path

import pyspark

from millstream.settings import MillstreamError, Settings

VARIABLE = "MILLSTREAM_MAVEN"  # a mirror's URL, or a folder with the jars (flat, or laid out as a repository)
SPARK_VARIABLE = "DEFAULT_ARTIFACT_REPOSITORY"  # Spark's own name for a mirror's URL
ATTEMPTS = 4  # per file, 1, 2 and 4 seconds apart; a network that is down is reported after that
TIMEOUT_S = 30.0  # without a byte for so long, a connection counts as broken
MAX_SIZE = 64 * 2**20  # no pinned jar is nearly as large; a server that sends more is not the one we want
_CHUNK = 256 * 1024

Progress = Callable[[str, int, int], None]  # (file, bytes so far, bytes in all or 0 when unknown)


@dataclass(frozen=True)
class Jar:
    """A file of a Maven repository and the SHA-256 that it must have."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """The file's path in a repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.name}"


_KAFKA_2_13 = (
    Jar(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    Jar(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.1.0-preview1",
        "ab6e27a8a47ce63348dd0ecbd5543dc6212b4783180305cde5749e79684ea97b",
    ),
    Jar(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    Jar(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)
# A version joins when the project's own tests pass on it. 4.3.0 runs with the connector of 4.2.0.
PINNED: dict[str, tuple[Jar, ...]] = {"4.3.0": _KAFKA_2_13, "4.2.0": _KAFKA_2_13}


def pinned(pyspark: str | None = None) -> tuple[Jar, ...]:
    """Return the jars for a pyspark version, the installed one by default. Raises MillstreamError for an unknown version."""
    pyspark = pyspark or version("pyspark")
    if pyspark not in PINNED:
        raise MillstreamError(
            f"pyspark {pyspark} is installed, which this Millstream was not tested with;"
            f" install one of {', '.join(PINNED)}: pip install pyspark=={next(iter(PINNED))}"
        )
    return PINNED[pyspark]


def repository() -> str:
    """Return where jars come from: the folder or URL that MILLSTREAM_MAVEN or Spark's own variable names, else the repository
    that Spark itself would ask (Maven Central). Raises MillstreamError when the installed Spark does not say which."""
    return os.environ.get(VARIABLE) or os.environ.get(SPARK_VARIABLE) or _built_in()


@remembered
def _built_in() -> str:
    """Read the address of Spark's default repository out of the class that has it, so that both always agree."""
    for jar in sorted((Path(pyspark.__file__).parent / "jars").glob("spark-common-utils_*.jar")):
        with zipfile.ZipFile(jar) as archive:
            code = archive.read("org/apache/spark/util/MavenUtils$.class")
        if found := re.search(rb"https://[\w.-]+/maven2/", code):
            return found[0].decode()
    raise MillstreamError(f"the installed pyspark names no repository for jars; set {VARIABLE} to the URL of one.")


def fetch(cache: Path, progress: Progress | None = None, *, jars: tuple[Jar, ...] | None = None) -> list[Path]:
    """Return the paths of the connector's jars, fetching those that the cache folder lacks or holds damaged.

    They come from MILLSTREAM_MAVEN (a URL or a folder), by default from where Spark gets its own packages. The environment's
    proxies are used.
    Raises MillstreamError that names the file, where it was looked for, and what to do.
    """
    folder = cache / "jars"
    return [_have(folder, jar, progress) for jar in (pinned() if jars is None else jars)]


def prepare(settings: Settings, say: Callable[[str], None]) -> None:
    """Make sure of the connector's jars, downloading those that the cache folder lacks; `say` is called with how far it is."""
    wanted = [jar.name for jar in pinned()]

    def progress(name: str, done: int, total: int) -> None:
        of = f" of {total / 1e6:.1f}" if total else ""
        number = wanted.index(name) + 1 if name in wanted else "?"
        say(f"downloading connector jar {number} of {len(wanted)}, {done / 1e6:.1f}{of} MB")

    fetch(settings.cache, progress)


def _have(folder: Path, jar: Jar, progress: Progress | None) -> Path:
    path = folder / jar.name
    if path.is_file() and _sha256(path) == jar.sha256:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    source = repository()
    if "://" not in source:
        _copy(jar, Path(source).expanduser(), path)
    else:
        _download(jar, f"{source.rstrip('/')}/{jar.path}", path, progress)
    return path


def _copy(jar: Jar, folder: Path, path: Path) -> None:
    for candidate in (folder / jar.name, folder / jar.path):
        if candidate.is_file():
            if (found := _sha256(candidate)) != jar.sha256:
                raise MillstreamError(
                    f"{candidate} is not the file expected: its SHA-256 is {found}, not {jar.sha256}. Replace it."
                )
            part = path.with_name(f"{path.name}.{os.getpid()}.part")
            shutil.copyfile(candidate, part)
            part.replace(path)
            return
    raise MillstreamError(
        f"{jar.name} is neither in {folder} nor under {folder / jar.path}, where {VARIABLE} says to look. Put it there."
    )


def _download(jar: Jar, url: str, path: Path, progress: Progress | None) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    _adopt(path, part)
    reason = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(2 ** (attempt - 1))
        try:
            _resume(url, part, lambda done, total: progress and progress(jar.name, done, total))
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if 400 <= error.code < 500 and error.code not in (408, 416, 429):
                break  # asking again changes nothing
            part.unlink(missing_ok=True)
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        else:
            if (found := _sha256(part)) == jar.sha256:
                part.replace(path)
                return
            part.unlink()
            reason = f"what came has the SHA-256 {found}, not {jar.sha256}"
    raise MillstreamError(
        f"{jar.name}, a part of Spark's Kafka connector, is not in {path.parent} and cannot be fetched from {url}:"
        f" {reason}. Connect to the network once (a proxy goes in https_proxy), put the file into {path.parent},"
        f" or set {VARIABLE} to a mirror's URL or to a folder that has it."
    )


def _resume(url: str, part: Path, progress: Callable[[int, int], object]) -> None:
    """Add to `part` what is missing of `url`."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        if have and answer.status != http.client.PARTIAL_CONTENT:
            have = 0
        length = int(answer.headers.get("Content-Length") or 0)
        total = have + length if length else 0
        with part.open("ab" if have else "wb") as out:
            while chunk := answer.read(_CHUNK):
                have += out.write(chunk)
                if have > MAX_SIZE:
                    raise OSError(f"the server sends more than {MAX_SIZE} bytes")
                progress(have, total)
        if total and have < total:
            raise OSError(f"the connection ended after {have} of {total} bytes")


def _adopt(path: Path, part: Path) -> None:
    """Take over what an interrupted download of a process that is gone has left, so that it is resumed, not begun again."""
    for left in path.parent.glob(f"{path.name}.*.part"):
        owner = left.name.removesuffix(".part").rsplit(".", 1)[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            if part.exists():
                left.unlink(missing_ok=True)
            else:
                left.replace(part)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
