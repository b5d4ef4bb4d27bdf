"""The README says what is true: its application is what `millstream init` writes, its commands and files are there."""

import re
import shlex
from pathlib import Path

import pytest

from millstream.cli import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"^\$ (millstream [^#\n]*|scripts/\S+)", README, re.MULTILINE)


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("name", ["shop.py", "test_shop.py"])
def test_the_application_shown_is_the_one_that_init_writes(name):
    """tests/cli/test_init.py runs it."""
    assert (ROOT / "src/millstream/cli/starter" / name).read_text() in BLOCKS


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
