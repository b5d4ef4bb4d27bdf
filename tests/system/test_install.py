"""The small installation, in an environment of its own: what works there, and what says which line to type."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.settings.extras import EXTRAS

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
GIVEN = os.environ.get("MILLSTREAM_SMALL", "")  # the Python of an environment that holds it already; see scripts/wheels
MODULES = [module for modules in EXTRAS.values() for module in modules]
APPLICATION = """
import millstream as ms

app = ms.App("shop")
{more}
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of the small installation."""
    if GIVEN:
        return GIVEN
    folder = tmp_path_factory.mktemp("small")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ROOT]
    # What is compiled is compared elsewhere; here it would only take its time.
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "MILLSTREAM_COMPILE": "0"})
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("pip cannot reach its package index")
    assert done.returncode == 0, done.stderr
    return str(folder / "bin" / "python")


@pytest.fixture
def run(python, tmp_path):
    """Run a command there and return what it printed. `code`: how it must end."""

    # -I: nothing of this environment, nor the working folder, is seen.
    def run(*words, code=0, given=""):
        command = [python, "-I", "-m", "millstream", *words]
        done = subprocess.run(command, capture_output=True, text=True, input=given, cwd=tmp_path, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if code else done.stdout

    return run


@pytest.fixture
def kafka(python, tmp_path):
    """The address of a broker of the small installation."""
    command = [python, "-I", "-m", "millstream", "broker", "--data", tmp_path / "log", "--listen", "127.0.0.1:0"]
    broker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert broker.stdout is not None
    word, _, facts = broker.stdout.readline().partition(" ")
    assert word == "ready"
    yield json.loads(facts)["kafka"]
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(30) == 0
    broker.stdout.close()


def test_it_is_small(python):
    code = f"""
import importlib.util, pathlib, sys
def there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
site = pathlib.Path(importlib.util.find_spec("millstream").origin).parents[1]
size = sum(f.stat().st_size for f in site.rglob("*") if f.is_file() and "pip" not in f.relative_to(site).parts[0])
print([m for m in {MODULES} if there(m)], size / 1e6)
"""
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True)
    there, _, megabytes = done.stdout.rpartition(" ")
    assert there == "[]"
    assert float(megabytes) < 100


def test_the_log_its_client_and_its_commands_work(run, kafka):
    at = ("--kafka", kafka)
    assert "created orders" in run("topics", "create", "orders", "--partitions", "1", *at)
    run("produce", "orders", *at, given='{"id": 1}\n{"id": 2}\n')
    tail = run("tail", "orders", "--from", "earliest", "--no-follow", "--filter", "id > 1", "--json", *at)
    assert [json.loads(line)["value"] for line in tail.splitlines()] == [{"id": 2}]
    assert "orders" in run("topics", *at)
    assert run("groups", *at)
    assert run("queries", *at)


def test_doctor_says_what_is_not_installed(run, kafka):
    said = run("doctor", "--kafka", kafka)
    assert "✗" not in said, said
    for extra in EXTRAS:
        assert f"extra {extra}" in said and f"pip install 'millstream[{extra}]'" in said
    findings = {finding["name"]: finding for finding in json.loads(run("doctor", "--json"))}
    assert findings["extra spark"]["found"] == "not installed" and "java" not in findings


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('app.table("t", source=ms.postgres("ops", table="t"))', "pip install 'millstream[postgresql]'"),
        (
            "from pyspark.sql import DataFrame",
            "shop.py line 5 needs pyspark, which is not installed. Type: pip install 'millstream[spark,postgresql]'",
        ),
        ("ms.tumbling", "shop.py line 5 needs pyspark"),
    ],
)
def test_an_application_says_what_to_type(run, tmp_path, command, more, said):
    (tmp_path / "shop.py").write_text(APPLICATION.format(more=more))
    assert said in run(command, "shop.py", code=1)


def test_commands_say_what_to_type(run):
    assert "pip install 'millstream[spark,postgresql,demo]'" in run("demo", code=1)
    assert (
        "`millstream views` needs psycopg, which is not installed. Type: pip install 'millstream[postgresql]'"
        in run("views", code=1)
    )


def test_the_kit_says_what_to_type(python, tmp_path):
    table = 'app = ms.App("a"); app.table("t", source=ms.postgres("ops", table="t"))'
    with_table = f"""{table}
with ms.testing.running(app, {str(tmp_path / "data")!r}): pass"""
    for code, who, extra in (
        ("ms.testing.run", "ms.testing.run", "spark"),
        (with_table, "the application 'a'", "postgresql"),
    ):
        words = [python, "-I", "-c", f"import millstream as ms; {code}"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
        assert f"{who} needs" in done.stderr and f"pip install 'millstream[{extra}]'" in done.stderr
