"""The README says what is true: its application is the demo's file, its commands and options exist, its files are there."""

import re
import shlex
from pathlib import Path

import pytest

from millstream.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"^\$ (millstream [^#\n]*|scripts/\S+)", README, re.MULTILINE)


def test_the_application_shown_is_the_file_that_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert (ROOT / "src/millstream/demo/flights.py").read_text() in blocks


@pytest.mark.system
@pytest.mark.usefixtures("spark")
def test_the_test_shown_passes():
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "def test_" in b)
    names: dict[str, object] = {}
    exec(block, names)
    names["test_very_late"]()


@pytest.mark.parametrize("line", SHOWN)
def test_commands_exist(line):
    words = shlex.split(line)
    if words[0] == "millstream":
        assert words[1] in COMMANDS
    else:
        assert (ROOT / words[0]).is_file()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#:]+)\)", README))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()
