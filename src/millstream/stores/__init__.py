"""Stores: where tables that queries keep are written, each batch exactly once, and read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from millstream.app.outputs import POSTGRESQL
from millstream.settings import Settings
from millstream.settings.extras import need

if TYPE_CHECKING:
    from millstream.stores.store import Rows


def read(
    settings: Settings,
    app: str,
    view: str,
    *,
    limit: int | None = None,
    where: Mapping[str, object] | None = None,
    store: str = POSTGRESQL,
) -> Rows:
    """Return the rows of a view, the newest windows first: `.rows()`, `.arrow()`, `.pandas()`.

    settings: with the address of the store.   limit: at most so many; without it all are read into memory.
    where: the values that columns must have; None for no value.
    Raises MillstreamError when there is no such view, the store does not answer, or its driver is not installed.
    """
    need("postgresql", by="reading a view")
    found: Rows = import_module(store).read(settings, app, view, limit=limit, where=where)
    return found
