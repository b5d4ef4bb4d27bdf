"""Part of building the package: makes an extension of protocol/walk.py with mypyc, where there is a C compiler.

Without one the package is built all the same, and the file runs as it is. The variable MILLSTREAM_COMPILE says otherwise: 0 never
compiles, 1 fails where that is not possible.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.errors import BaseError, CompileError, LinkError

SOURCE = Path("src/millstream/protocol/walk.py")


class Compile(BuildHookInterface):
    """Puts the extension beside its source, where an editable installation finds it, and into a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        wanted = os.environ.get("MILLSTREAM_COMPILE", "")
        if wanted == "0":
            return
        try:
            built = compiled(Path(self.root))
        except (BaseError, CompileError, LinkError) as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"{SOURCE} is not compiled and will run some ten times slower: {error}")
            return
        build_data["infer_tag"] = True
        build_data["pure_python"] = False
        build_data["force_include"] |= {str(path): str(path.relative_to(Path(self.root) / "src")) for path in built}


def compiled(root: Path) -> list[Path]:
    """The files of the extension, made beside the source below `root`."""
    with chdir(root), tempfile.TemporaryDirectory() as scratch:
        os.environ["MYPYPATH"] = "src"
        # The checks of the whole package are mypy's own run; here the one file is all that mypyc needs.
        options = ["--config-file=", "--follow-imports=skip", "--explicit-package-bases", str(SOURCE)]
        modules = mypycify(options, target_dir=scratch, group_name="millstream.protocol.walk", debug_level="0")
        command = Distribution({"ext_modules": modules, "package_dir": {"": "src"}}).get_command_obj("build_ext")
        command.build_lib = command.build_temp = scratch
        command.ensure_finalized()
        command.run()
        built = []
        for made in map(Path, command.get_outputs()):
            target = (root / "src" / made.relative_to(scratch)).resolve()
            # Not written over: a process that runs has the old file mapped.
            target.unlink(missing_ok=True)
            target.write_bytes(made.read_bytes())
            built.append(target)
        return built
