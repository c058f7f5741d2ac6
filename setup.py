"""Builds the native timing loop and the manual page, and ships the CUDA kernels; pyproject.toml has everything else about the package.

The loop is plain C without Python.h, loaded with ctypes: one file named `_loop.so` serves every Python. A machine without a C compiler
still gets a working install: the loop then runs in Python and says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

# isort: split
from distutils.command.install_data import install_data  # setuptools' copy: it replaces the standard library's

MAN_PAGE = Path("build/man/collbench.1")
LOOP = "collbench.native._loop"
KERNELS = Path("cuda_kernels")  # compiled at run time, so their sources are installed: collbench/device/kernels.py looks for them
SOURCES = sorted(str(path) for path in Path("collbench/native").glob("*.c"))


class BuildLoop(build_ext):
    """Compiles the loop under a name that carries no Python tag."""

    def get_ext_filename(self, fullname: str) -> str:
        """Return `…/_loop.so`: the interpreter's tag would leave one copy per Python behind, of which the loader could take a stale one."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def run(self) -> None:
        """Remove the last build first: a compiler that fails must not leave an old loop beside a new loop.c."""
        for extension in self.extensions:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            Path(self.build_lib, self.get_ext_filename(extension.name)).unlink(missing_ok=True)
        super().run()


class ShipKernels(build_py):
    """Puts the kernels into the package of a wheel; an editable install finds them beside it."""

    def run(self) -> None:
        """Copy them after the package's own files."""
        super().run()
        if not self.editable_mode and KERNELS.is_dir():
            shutil.copytree(KERNELS, Path(self.build_lib, "collbench", KERNELS), dirs_exist_ok=True)


class InstallManPage(install_data):
    """Writes the manual page from the parsers of the command line, and puts it into share/man."""

    def run(self) -> None:
        """Write it first. Without the packages that the parsers need, everything else is installed."""
        done = subprocess.run([sys.executable, "scripts/man_page"], capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode:
            self.warn(f"the manual page cannot be written: {done.stderr.strip()}")
            return
        MAN_PAGE.parent.mkdir(parents=True, exist_ok=True)
        MAN_PAGE.write_text(done.stdout, encoding="utf-8")
        super().run()


setup(
    data_files=[("share/man/man1", [str(MAN_PAGE)])],
    ext_modules=[Extension(LOOP, SOURCES, extra_compile_args=["-O2"], optional=True)] if SOURCES else [],
    cmdclass={"build_ext": BuildLoop, "build_py": ShipKernels, "install_data": InstallManPage},
)
