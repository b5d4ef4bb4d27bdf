"""The folder of an embedded PostgreSQL: made once, safe to interrupt, configured at every start.

<folder>/
  server.json   {"version": 1, "port": …}: this layout's version, and the port, kept across starts
  passfile      the password in libpq's format (0600); connection strings name this file, never the password
  config/       postgresql.conf and pg_hba.conf, rewritten at every start; ALTER SYSTEM changes win over them
  data/         PostgreSQL's own data folder; with `log/`, its log by day of the week
  owner         held (flock) by the process that runs the server
  lock          held (flock) by the server's processes as long as one of them lives
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from millstream.postgresql.account import Account, account_for_initdb, give
from millstream.postgresql.binaries import MAJOR
from millstream.settings import MillstreamError
from millstream.settings.files import replace

VERSION = 1
ROLE = "millstream"
HOST = "127.0.0.1"
INITDB_S = 120.0  # initdb takes half a second; a disk that makes it take this long cannot hold a database

# For a machine that is shared with Spark and the broker. max_slot_wal_keep_size is the most disk that a capture which is
# away may hold; beyond it the slot is lost and the tables are copied again.
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "max_connections": "60",
    "shared_buffers": "64MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "64MB",
    "io_method": "sync",  # no I/O worker processes
    "jit": "off",
    "max_worker_processes": "4",
    "max_parallel_workers_per_gather": "0",
    "max_logical_replication_workers": "0",
    "wal_level": "logical",
    "max_wal_senders": "10",
    "max_replication_slots": "10",
    "max_slot_wal_keep_size": "2GB",
    "max_wal_size": "1GB",
    "wal_sender_timeout": "30s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgresql-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_checkpoints": "off",
}
_ACCESS = f"host all all {HOST}/32 scram-sha-256\nhost replication all {HOST}/32 scram-sha-256\n"


def prepare(folder: Path) -> None:
    """Make the folder (0700) and the password."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    passfile = folder / "passfile"
    if not passfile.exists():
        if (folder / "data").exists():
            raise MillstreamError(
                f"{passfile} is missing, and without it nobody can log into the PostgreSQL in {folder}. Restore it, or"
                f" remove {folder} to start with an empty database."
            )
        _write(passfile, f"{HOST}:*:*:{ROLE}:{secrets.token_urlsafe(24)}\n", 0o600)


def initialize(folder: Path, install: Path, account: Account) -> None:
    """Run initdb into `folder`/data unless that was done. What an interrupted run left is thrown away."""
    data = folder / "data"
    if data.exists():
        version = (data / "PG_VERSION").read_text().strip()
        if version != str(MAJOR):
            raise MillstreamError(
                f"{data} was made by PostgreSQL {version}, this is {MAJOR}. Dump it with the old version and load it into a"
                " new folder, or go back to the version of Millstream that made it."
            )
        return
    part = folder / "data.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(mode=0o700)
    at = os.open(part, os.O_RDONLY | os.O_DIRECTORY)
    runner = account_for_initdb(account)
    password = _memory_file((folder / "passfile").read_text().strip().rsplit(":", 1)[1])
    try:
        give(at, runner)
        command: list[str | Path] = [install / "bin" / "initdb", "-D", spelled(at, part, account), "-U", ROLE]
        command += ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        command += ["--auth=scram-sha-256", f"--pwfile=/dev/fd/{password}", "--no-instructions"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
            pass_fds=[at, password],
            timeout=INITDB_S,
            check=False,
            **runner.popen(),
        )
        if done.returncode:
            raise MillstreamError(f"initdb failed in {part}: {(done.stderr or done.stdout).strip()}")
        give(at, account)
        os.fsync(at)
    finally:
        os.close(at)
        os.close(password)
    part.rename(data)


def configure(folder: Path, port: int) -> None:
    """Write the configuration of this start."""
    config = folder / "config"
    config.mkdir(exist_ok=True)
    settings = {**_SETTINGS, "port": str(port)}
    text = "".join(f"{name} = '{value}'\n" for name, value in settings.items())
    # Readable by PostgreSQL's user, which reaches them through the open folder; nobody else gets past `folder`.
    config.chmod(0o755)
    _write(
        config / "postgresql.conf", f"# Written at every start; use ALTER SYSTEM for changes that stay.\n{text}", 0o644
    )
    _write(config / "pg_hba.conf", _ACCESS, 0o644)


def kept_port(folder: Path) -> int:
    """Return the port of the last start, 0 before the first."""
    path = folder / "server.json"
    if not path.exists():
        return 0
    facts = json.loads(path.read_text())
    if facts.get("version") != VERSION:
        raise MillstreamError(
            f"{path} has version {facts.get('version')}, expected {VERSION}; a newer Millstream made this folder."
        )
    return int(facts["port"])


def keep_port(folder: Path, port: int) -> None:
    """Remember the port for the next start."""
    _write(folder / "server.json", json.dumps({"version": VERSION, "port": port}) + "\n", 0o600)


def last_words(folder: Path, started: Path, lines: int = 8) -> str:
    """Return the last lines that PostgreSQL logged, to say why it ended."""
    logs = sorted((folder / "data" / "log").glob("*.log"), key=lambda p: p.stat().st_mtime)[-1:]
    text = "".join(_tail(path) for path in [started, *logs])
    wanted = [line for line in text.splitlines() if re.search(r"\b(ERROR|FATAL|PANIC|HINT|could not)\b", line)]
    return " | ".join((wanted or text.splitlines())[-lines:]) or "it said nothing"


def spelled(at: int, path: Path, account: Account) -> str:
    """Return how `account` can name the open folder `at`, whose path it may not be allowed to walk."""
    return f"/proc/self/fd/{at}" if account.other else str(path.absolute())


def _memory_file(text: str) -> int:
    """A file without a name, for a password that initdb wants to read from a file."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("password")
        os.write(fd, text.encode())
        os.lseek(fd, 0, os.SEEK_SET)
        return fd
    reader, writer = os.pipe()
    os.write(writer, text.encode())
    os.close(writer)
    return reader


def _write(path: Path, text: str, mode: int) -> None:
    replace(path, text.encode(), mode=mode)


def _tail(path: Path, size: int = 8192) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
