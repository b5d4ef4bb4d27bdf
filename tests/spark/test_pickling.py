"""What keeps a function from travelling to Spark's workers, and functions of applications' files."""

import pickle
import sys
import threading
from types import ModuleType

import pytest
from pyspark import cloudpickle

from millstream.spark.pickling import not_picklable, send_applications_by_value

LOCK = threading.Lock()


def sent(function):
    """What Spark does with a function, and what it raises."""
    try:
        cloudpickle.dumps(function)
    except TypeError as error:
        raise pickle.PicklingError(f"Could not serialize object: {error}") from error


def test_the_name_that_cannot_be_sent():
    def guarded(value):
        return LOCK, value

    inner = threading.Event()

    def waits(value):
        return inner, value

    for function, said in ((guarded, "'guarded' uses 'LOCK', a lock"), (waits, "'waits' uses 'inner', a Event")):
        with pytest.raises(pickle.PicklingError) as caught:
            sent(function)
        assert said in not_picklable(caught.value)


def test_another_error():
    assert not_picklable(TypeError("cannot pickle")) is None
    assert "cannot be sent" in not_picklable(pickle.PicklingError("deep inside"))


def test_functions_of_applications_travel_by_value(monkeypatch):
    module = ModuleType("_millstream_app_clicks")
    exec("def shout(text):\n    return text.upper()\n\n\ndef loud(text):\n    return shout(text)", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    send_applications_by_value()
    data = cloudpickle.dumps(module.loud)
    monkeypatch.delitem(sys.modules, module.__name__)
    assert pickle.loads(data)("ann") == "ANN"  # noqa: S301 - our own
