"""Functions of users in Spark's Python workers: what travels by value, and which name keeps a function from travelling."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Iterator
from types import FunctionType

from pyspark import cloudpickle

APPLICATION = "_millstream_app_"  # prefix of the modules that `app.load` makes of files


def send_applications_by_value() -> None:
    """Let functions of applications' files travel to Spark's workers, which cannot import those files by name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(APPLICATION):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def not_picklable(error: BaseException) -> str | None:
    """Return which name a function uses that cannot be sent to a worker, or None when the error is another one."""
    if not isinstance(error, pickle.PicklingError):
        return None
    for function in _functions(error):
        variables = inspect.getclosurevars(function)
        for name, value in {**variables.globals, **variables.nonlocals}.items():
            try:
                cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
            except Exception:
                return (
                    f"the function {function.__name__!r} uses {name!r}, a {type(value).__name__}, which cannot be sent to"
                    " Spark's Python workers. Make it inside the function, or use plain values."
                )
    return f"a function cannot be sent to Spark's Python workers: {error}"


def _functions(error: BaseException) -> Iterator[FunctionType]:
    """The functions that Spark's own code had in hand when the error was raised, the innermost first."""
    found = []
    frame = error.__traceback__
    while frame is not None:
        for value in frame.tb_frame.f_locals.values():
            if isinstance(value, FunctionType) and not value.__module__.startswith(("pyspark", "py4j")):
                found.append(value)
        frame = frame.tb_next
    yield from dict.fromkeys(reversed(found))
