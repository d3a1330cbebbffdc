"""The wheel with some modules compiled, if ``APPORTION_COMPILED=1`` says so when it is built.  Else it is plain.

What is compiled is said in pyproject.toml, by ``tool.hatch.build.targets.wheel.hooks.custom``.  The sources are in
the wheel as well, and nothing is written into the source tree.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WANTED = "APPORTION_COMPILED"
NEEDED = ["mypy==2.4.1", "setuptools>=78"]
"""The compiler is of one version: another one may refuse what this one takes."""


class CompiledHook(BuildHookInterface[Any]):
    """Compiles with mypyc, or does nothing."""

    def dependencies(self) -> list[str]:
        return NEEDED if self._is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self._is_wanted():
            return
        self._built = Path(tempfile.mkdtemp(prefix="apportion-compiled-"))
        for file in _compile(Path(self.root), self.config["modules"], self._built):
            build_data["force_include"][str(file)] = str(file.relative_to(self._built / "lib"))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_built"):
            shutil.rmtree(self._built)

    def _is_wanted(self) -> bool:
        said = os.environ.get(WANTED, "0")
        if said not in ("0", "1"):
            raise ValueError(f"{WANTED}={said}: 1 compiles, 0 does not")
        return said == "1"


def _compile(root: Path, patterns: list[str], place: Path) -> list[Path]:
    """The extension modules, under ``lib`` of ``place`` as they are to lie in the wheel."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    os.chdir(root)  # mypyc names modules by their paths from here
    modules = sorted(str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern))
    options = ["--config-file", "pyproject.toml", "--cache-dir", str(place / "types")]
    extensions = mypycify(
        [*options, *modules], opt_level="2", debug_level="0", target_dir=str(place / "c"), group_name="apportion"
    )
    command = Distribution({"name": "apportion", "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(place / "lib"), str(place / "objects")
    command.ensure_finalized()
    command.run()
    return [Path(file) for file in command.get_outputs()]
