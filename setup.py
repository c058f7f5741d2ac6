"""Builds the native timing loop, and adds three files to what pyproject.toml and MANIFEST.in describe.

These are the version file, since setuptools-scm writes it without the whole commit and into checkouts, too, where it would be out of date
after the next commit; the manual page, which is made from the parsers; and the CUDA kernels, which are not below the package's folder.

The loop is plain C without Python.h, loaded with ctypes: one file named `_loop.so` serves every Python, and so does one wheel. A machine
without a C compiler still gets a working install: the loop then runs in Python and says so. COLLBENCH_PURE=1 leaves the loop out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

# isort: split
from distutils.command.install_data import install_data  # setuptools' copy: it replaces the standard library's

MAN_PAGE = Path("build/man/collbench.1")
LOOP = "collbench.native._loop"
KERNELS = Path("cuda_kernels")  # compiled at run time, so their sources are installed: collbench/device/kernels.py looks for them
COMMIT_FILE = Path(".commit")  # in copies of a checkout without .git: deploy/install writes it
VERSION_FILE = Path("collbench/_version.py")  # in archives and wheels only: in a checkout it would be out of date after the next commit
SOURCES = [] if os.environ.get("COLLBENCH_PURE") else sorted(str(path) for path in Path("collbench/native").glob("*.c"))


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


def write_version(folder: str, version: str) -> None:
    """Write version and commit into the package in `folder`, unless the source archive that is being built has brought them."""
    if VERSION_FILE.exists():
        return
    commit = COMMIT_FILE.read_text(encoding="utf-8").strip() if COMMIT_FILE.exists() else ""
    if Path(".git").exists() and shutil.which("git"):
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, encoding="utf-8", check=False)
        commit = done.stdout.strip()
    text = f'"""Version and commit; setup.py wrote them."""\n\n__version__ = "{version}"\nCOMMIT = "{commit}"\n'
    Path(folder, VERSION_FILE).write_text(text, encoding="utf-8")


class ArchiveVersion(sdist):
    """Puts the version file into the source archive; MANIFEST.in lists its other files."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Write it after the other files."""
        super().make_release_tree(base_dir, files)
        write_version(base_dir, self.distribution.get_version())


class ShipKernels(build_py):
    """Puts the kernels and the version file into the package of a wheel; an editable install finds the kernels beside it."""

    def run(self) -> None:
        """Copy them after the package's own files."""
        super().run()
        if self.editable_mode:
            return
        write_version(self.build_lib, self.distribution.get_version())
        if KERNELS.is_dir():
            shutil.copytree(KERNELS, Path(self.build_lib, "collbench", KERNELS), dirs_exist_ok=True)


class TagForEveryPython(bdist_wheel):
    """Names the wheel after its platform alone: the loop does not use Python's binary interface."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return py3-none-PLATFORM, or py3-none-any without the loop."""
        return ("py3", "none", super().get_tag()[2])


class InstallManPage(install_data):
    """Writes the manual page from the parsers of the command line, and puts it into share/man."""

    def run(self) -> None:
        """Write it first. Without the packages that the parsers need, everything else is installed."""
        done = subprocess.run([sys.executable, "tools/man_page"], capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode:
            self.warn(f"the manual page cannot be written: {done.stderr.strip()}")
            return
        MAN_PAGE.parent.mkdir(parents=True, exist_ok=True)
        MAN_PAGE.write_text(done.stdout, encoding="utf-8")
        super().run()


class WithManPage(Distribution):
    """Has data files in editable installs, too."""

    def has_data(self) -> bool:
        """Return whether to run install_data: editable_wheel looks for this name, and Distribution has only `has_data_files`."""
        return self.has_data_files()


setup(
    distclass=WithManPage,
    data_files=[("share/man/man1", [str(MAN_PAGE)])],
    ext_modules=[Extension(LOOP, SOURCES, extra_compile_args=["-O2"], optional=True)] if SOURCES else [],
    cmdclass={
        "bdist_wheel": TagForEveryPython,
        "build_ext": BuildLoop,
        "build_py": ShipKernels,
        "install_data": InstallManPage,
        "sdist": ArchiveVersion,
    },
)
