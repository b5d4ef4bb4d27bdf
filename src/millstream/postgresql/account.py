"""The user that PostgreSQL runs as: ours, or, since it refuses to run as root, a user of its own.

That user has no name, no home and no file but PostgreSQL's data folder. It may lie below folders that the user cannot enter:
PostgreSQL is then handed the open folder and calls it /proc/self/fd/N, so that no other folder's mode or owner is changed.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millstream.settings import MillstreamError

# Users that systemd's and Debian's tables leave unused; the first without a name is taken. Below 65536, so that user
# namespaces of the usual size have them.
_OWN_USERS = range(61_100, 61_184)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Account:
    """A user and its group. `other`: it is not the user that this process runs as."""

    uid: int
    gid: int
    other: bool

    def popen(self) -> dict[str, Any]:
        """Return the arguments that make `subprocess` start a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.other else {}

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Act as this user for a moment: only it may look at its processes when root lacks the right to trace."""
        if not self.other:
            yield
            return
        os.setegid(self.gid)
        os.seteuid(self.uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)


def account_for(data: Path) -> Account:
    """Return the user that PostgreSQL runs as on the data folder `data`, which need not exist yet.

    Raises MillstreamError when the folder belongs to somebody else and we are not root.
    """
    me = os.geteuid()
    owner = data.stat() if data.exists() else None
    if me != 0:
        if owner is not None and owner.st_uid != me:
            raise MillstreamError(
                f"the PostgreSQL data in {data} belong to user {owner.st_uid}, but this is user {me}. Run as that user (or"
                " root), or choose another data folder."
            )
        return Account(me, os.getegid(), other=False)
    if owner is not None and owner.st_uid != 0:
        return Account(owner.st_uid, owner.st_gid, other=True)
    named = {user.pw_uid for user in pwd.getpwall()}
    own = next((uid for uid in _OWN_USERS if uid not in named), None)
    if own is None:
        raise MillstreamError(
            f"every user from {_OWN_USERS[0]} to {_OWN_USERS[-1]} has a name; run as an ordinary user."
        )
    return Account(own, own, other=True)


def account_for_initdb(account: Account) -> Account:
    """Return the user that runs initdb, which insists on a name: `account` unless it is our nameless one."""
    try:
        pwd.getpwuid(account.uid)
    except KeyError:
        pass
    else:
        return account
    if not account.other:
        raise MillstreamError(
            f"PostgreSQL's initdb needs a user with a name, but user {account.uid} has no entry in /etc/passwd. Add one, or"
            " give an address: MILLSTREAM_POSTGRES=postgresql://…"
        )
    users = sorted((u for u in pwd.getpwall() if u.pw_uid), key=lambda u: (u.pw_name != "nobody", u.pw_uid))
    if not users:
        raise MillstreamError("PostgreSQL never runs as root and /etc/passwd has no other user. Add one (useradd).")
    return Account(users[0].pw_uid, users[0].pw_gid, other=True)


def give(folder: int, account: Account) -> None:
    """Make `account` the owner of everything in the open folder; nothing when it is our own user."""
    if not account.other:
        return
    for _, folders, files, at in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in folders + files:
            os.chown(name, account.uid, account.gid, dir_fd=at, follow_symlinks=False)
    os.fchown(folder, account.uid, account.gid)


def with_parent(signum: signal.Signals) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the kernel send the child `signum` when the thread that started it ends.

    Linux only (prctl(2), PR_SET_PDEATHSIG); elsewhere it does nothing.
    """
    parent = os.getpid()
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
        if os.getppid() != parent:  # it died before we were armed
            os._exit(1)

    return arm


def processes_in(folder: os.stat_result, account: Account) -> list[int]:
    """Return the ids of the processes whose working folder is `folder`: PostgreSQL's, for it changes into its data folder."""
    found: list[int] = []
    proc = Path("/proc")
    if not proc.is_dir():
        return found
    with account.acting():
        for entry in proc.iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                at = (entry / "cwd").stat()
            except OSError:
                continue
            if (at.st_dev, at.st_ino) == (folder.st_dev, folder.st_ino):
                found.append(int(entry.name))
    return found
