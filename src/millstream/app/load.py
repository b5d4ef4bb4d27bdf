"""Loading an application from its file or module, with the user's own line in the message when it fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from millstream.app.application import App
from millstream.settings import MillstreamError
from millstream.settings.extras import missing

PREFIX = "_millstream_app_"  # of the name under which an application's file is imported


def load(target: str) -> App:
    """Return the application that `target` names: a file ("flights.py"), a module ("millstream.demo.flights"), or either
    followed by ":" and the variable's name.

    Raises MillstreamError when there is none, several, or when the file fails to import (naming its line).
    """
    place, _, variable = target.partition(":")
    module = _import(place)
    found = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if variable:
        if variable not in found:
            raise MillstreamError(
                f"{place} has no application named {variable!r}; it has {', '.join(found) or 'none'}."
            )
        return found[variable]
    distinct = {id(app): app for app in found.values()}
    if not distinct:
        raise MillstreamError(f'{place} declares no application. Add: app = ms.App("name")')
    if len(distinct) > 1:
        raise MillstreamError(
            f"{place} declares several applications ({', '.join(found)}); name one: {place}:{next(iter(found))}"
        )
    return next(iter(distinct.values()))


def _import(place: str) -> ModuleType:
    path = Path(place)
    if path.suffix != ".py" and not path.exists():
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise _failure(place, error) from error
            raise MillstreamError(
                f"expected an application's file or module, got {place!r}: there is no such one."
            ) from error
        except MillstreamError:
            raise
        except Exception as error:
            raise _failure(place, error) from error
    if not path.is_file():
        raise MillstreamError(f"the application file {place} does not exist.")
    path = path.absolute()
    name = PREFIX + path.stem
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise MillstreamError(f"{place} is not a Python file.")
    module = importlib.util.module_from_spec(specification)
    # Registered, because Spark pickles functions by reference to their module and typing resolves names through it.
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        specification.loader.exec_module(module)
    except MillstreamError as error:
        raise MillstreamError(f"{place}{_line(error, path)}: {error}") from error
    except Exception as error:
        raise _failure(place, error, path) from error
    finally:
        sys.path.remove(str(path.parent))
    return module


def _failure(place: str, error: BaseException, path: Path | None = None) -> MillstreamError:
    # Whatever an application does on Spark, what runs it needs PostgreSQL's client too.
    if isinstance(error, ImportError) and (said := missing(error, f"{place}{_line(error, path)}", "postgresql")):
        return said
    return MillstreamError(f"{place}{_line(error, path)} failed: {type(error).__name__}: {error}")


def _line(error: BaseException, path: Path | None) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f" line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if path is None or Path(f.filename) == path]
    return f" line {frames[-1].lineno}" if frames and path else ""
