"""An application's description is taken in a process of its own, with what can go wrong there."""

import subprocess
import sys

import pytest

from millstream.app.graph import describe as describe_app
from millstream.serve.description import describe
from millstream.settings import MillstreamError
from tests.serve.feed import application

APP = """
import millstream as ms
print("noise of the user's file")

class Event(ms.Event):
    name: str

app = ms.App("small")
app.topic("events", Event)
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "small.py"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_is_described_whatever_it_prints(file):
    found = describe(file(APP))
    assert (found["app"], [t["name"] for t in found["inputs"]]) == ("small", ["events"])


def test_what_the_user_must_mend_is_said(file):
    with pytest.raises(MillstreamError, match="declares no application"):
        describe(file("x = 1"))
    with pytest.raises(MillstreamError, match="does not exist"):
        describe("missing.py")


def test_a_file_that_ends_the_process_is_named(file):
    with pytest.raises(MillstreamError, match=r"small\.py ended its process \(exit code 7\)"):
        describe(file("import os; os._exit(7)"))


def test_the_process_of_the_console_loads_nothing_that_the_file_loads(file):
    path = file("import pyspark\n" + APP)
    code = (
        f"import sys, millstream.serve.process as m; assert m.describe({path!r})['app'] == 'small';"
        "print([x for x in ('pyspark', 'py4j', 'pandas', 'pyarrow', 'numpy') if x in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_description_is_what_the_page_reads():
    described = describe_app(application())
    assert {"app", "inputs", "topics", "tables", "queries", "dead_letters", "nodes", "edges"} <= described.keys()
