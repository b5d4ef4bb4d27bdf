"""The tests of the log kill processes, not machines: what the kernel holds survives, so syncing would only be slow."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_sync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
