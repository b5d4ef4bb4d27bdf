"""protocol/walk.py as it stands, whether or not an extension was made of it."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from millstream.protocol import walk

SOURCE = Path(walk.__file__).with_name("walk.py")


@cache
def interpreted() -> ModuleType:
    """The module, with the types of the one that is imported: an error of the one is an error of the other."""
    loader = SourceFileLoader("interpreted_walk", str(SOURCE))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.RecordsError, module.Record = walk.RecordsError, walk.Record
    return module
