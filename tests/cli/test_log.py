"""`millstream log verify` on whole and damaged folders."""

import json

import pytest

from millstream.cli import main
from millstream.log import Log
from millstream.protocol import records


@pytest.fixture
def folder(tmp_path):
    with Log(tmp_path / "log") as log:
        partition = log.create("t", 1).partitions[0]
        for i in range(10):
            partition.append(records.build([(b"k", b"%d" % i)], 1), 1)
    return tmp_path / "log"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["log", *arguments])
        printed = capsys.readouterr()
        return end.value.code or 0, printed.out + printed.err

    return run


def test_a_whole_log(folder, run):
    code, said = run("verify", str(folder))
    assert code == 0 and "1 segments" in said and "all is whole" in said
    code, said = run("verify", str(folder), "--json")
    assert code == 0 and json.loads(said)["damage"] == [] and json.loads(said)["segments"] == 1


def test_a_damaged_one(folder, run):
    (path,) = folder.rglob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    code, said = run("verify", str(folder))
    assert code == 1 and "t-0 offset" in said and path.name in said and "1 damaged" in said
    code, said = run("verify", str(folder), "--json")
    (damage,) = json.loads(said)["damage"]
    assert code == 1 and (damage["topic"], damage["partition"], damage["file"]) == ("t", 0, str(path))


@pytest.mark.parametrize("words", [("verify", "nowhere"), ("verify",), ("mend", "x")])
def test_what_is_refused(words, run):
    code, said = run(*words)
    assert code == 1 and "error: " in said and "expected" in said
