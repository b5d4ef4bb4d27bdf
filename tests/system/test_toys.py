"""A source, a format and an output that no file of the package knows: planned, run, shown and tested like any other."""

import json
import sys
import textwrap
import time

import pytest

import millstream as ms
from millstream.app import graph, load
from millstream.run.compare import compare
from millstream.serve.console import Reading
from millstream.serve.graph import graph as drawn
from millstream.settings import Settings
from tests.serve.test_console import state_of
from tests.system import toys

FILE = """
from pathlib import Path
from tests.system.toys import application
app = application(Path({folder!r}))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lines.txt").write_text("1 10\n2 20\n")
    (tmp_path / "app.py").write_text(textwrap.dedent(FILE.format(folder=str(tmp_path))))
    return tmp_path


def test_plan_knows_them(folder):
    app = toys.application(folder)
    found = graph.graph(app, Settings(data=folder / "data"))
    assert {p.name for p in found.processes} == {"broker", "capture-lines", "spark", "serve"}
    assert ("source:lines", "topic:numbers") in found.edges
    assert ("query:joined", f"result:{folder / 'out.jsonl'}") in found.edges
    compared = compare(found, Settings(data=folder / "data"))
    assert [c.name for c in compared.changes if c.name == "words"] == ["words"]
    assert [c["name"] for c in compared.columns["numbers"]["columns"]] == ["id", "n"]
    assert compared.sound


def test_the_page_shows_them(folder):
    description = graph.describe(toys.application(folder))
    assert description["inputs"][0]["format"] == "colon" and description["tables"][0]["source"] == "file"
    found = drawn(description, state_of(description))
    assert found.nodes["source:lines"].note.startswith("file")
    assert found.nodes["query:joined"].kind == "query-appended"
    assert Reading().topics == {}


@pytest.mark.system
def test_a_function_runs_on_rows(folder):
    app = toys.application(folder)
    rows = ms.testing.run(app.queries["joined"].function, [toys.Word(word="a", id=1)], [{"id": 1, "n": 5}])
    assert rows == [{"id": 1, "word": "a", "n": 5}]


@pytest.mark.system
def test_they_run(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    app = load(str(folder / "app.py"))
    with ms.testing.running(app, folder / "data", file=str(folder / "app.py")) as running:
        running.produce("words", [toys.Word(word="a", id=1), toys.Word(word="b", id=2), b"nonsense"])
        running.wait()
        out = folder / "out.jsonl"
        found = [json.loads(line) for line in out.read_text().splitlines()]
        assert sorted((r["word"], r["n"]) for r in found) == [("a", 10), ("b", 20)]
        [letter] = running.topic("toys.dead_letters")
        assert (letter["reason"], letter["value"]) == ("expected word:number", "nonsense")
        with (folder / "lines.txt").open("a") as file:
            file.write("1 11\n")
        deadline = time.monotonic() + 20
        while len(running.topic("numbers")) < 3 and time.monotonic() < deadline:
            time.sleep(0.1)
        running.produce("words", [toys.Word(word="c", id=1)])
        running.wait()
        last = json.loads(out.read_text().splitlines()[-1])
        assert (last["word"], last["n"]) == ("c", 11)
