"""A site as on a cluster: a Python with its own torch and mpi4py, an MPI next to it, and a package index on disk.

All of it is this environment's own: its packages are linked, or zipped into wheels again, so nothing is fetched.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path
from shutil import copytree
from zipfile import ZIP_STORED, ZipFile

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
INSTALL = ROOT / "deploy/install" / "install.sh"
OF_TORCH = (
    "torch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock", "typing_extensions", "numpy", "setuptools",
)  # fmt: skip

PRETENDED = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_COLLBENCH"
VERSION = "1.2.3"  # that the installs are told to have, instead of the version of the newest tag

Finished = subprocess.CompletedProcess[str]


class Site:
    """Make a Python with links to this environment's distributions; those of `marked` have the version `…+site`."""

    def __init__(self, folder: Path, names: Iterable[str] = (*OF_TORCH, "mpi4py"), marked: Iterable[str] = ("torch", "mpi4py")) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "python"], check=True, timeout=60)
        self.python = folder / "python/bin/python"
        self.packages = next((folder / "python/lib").glob("python*/site-packages"))
        for name in names:
            self._link(distribution(name))
        for name in marked:
            self.is_of_version(name, f"{distribution(name).version.partition('+')[0]}+site")

    def _link(self, found: Distribution) -> None:
        for top in {str(file).split("/")[0] for file in found.files or []} - {"..", "__pycache__"}:
            if top.endswith(".dist-info"):
                copytree(found.locate_file(top), self.packages / top)
            elif not (self.packages / top).exists():
                (self.packages / top).symlink_to(str(found.locate_file(top)))

    def is_of_version(self, name: str, version: str) -> None:
        (file,) = self.packages.glob(f"{name}-*.dist-info/METADATA")
        file.write_text(re.sub(r"^Version: .*$", f"Version: {version}", file.read_text(), count=1, flags=re.MULTILINE))
        file.parent.rename(self.packages / f"{name}-{version}.dist-info")  # pip takes the version from this name

    def frozen(self, python: Path | None = None) -> set[str]:
        """Return the output of `pip freeze` of the site's Python, or of another one; without `collbench` and its address."""
        words = [sys.executable, "-m", "pip", "--python", str(python or self.python), "freeze", "--all"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return {line for line in done.stdout.splitlines() if not line.startswith("collbench")}

    def install(self, prefix: Path, *words: str, env: dict[str, str] | None = None, program: Path = INSTALL) -> Finished:
        line = ["timeout", "110", str(program), str(prefix), "--python", str(self.python), *words]
        return subprocess.run(line, cwd=self.folder, env=at_the_site(env), capture_output=True, text=True, check=False)


def at_the_site(more: dict[str, str] | None = None) -> dict[str, str]:
    """Variables with the site's MPI loaded, as its module would: the library of the wheel mpich, found by the loader alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "COLLBENCH_", "VIRTUAL_ENV"))}
    return {**kept, "LD_LIBRARY_PATH": str(Path(sys.prefix) / "lib"), PRETENDED: VERSION, **(more or {})}


def offline(wheels: Path) -> dict[str, str]:
    """The variables under which pip knows these wheels and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def needed() -> set[str]:
    """What an install of collbench[mpi] and of the extras that install.sh adds asks for, also indirectly; and what builds it."""
    return building() | measuring("mpi") | measuring("completion") | measuring("store")


def measuring(extra: str) -> set[str]:
    """What collbench with an extra asks for, and what that asks for in turn."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"][extra]]
    return {name for wanted in asked for name in _closure(Requirement(wanted).name.lower())}


def building() -> set[str]:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return {name for wanted in asked for name in _closure(Requirement(wanted).name.lower())}


def _closure(name: str) -> Iterator[str]:
    yield name
    for wanted in map(Requirement, distribution(name).requires or []):
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield from _closure(wanted.name.lower())


def repack(name: str, folder: Path) -> None:
    """Zips an installed distribution into the wheel that it came from, as far as pip is concerned."""
    found = distribution(name)
    tags = [line.split("-") for line in re.findall(r"^Tag: (.*)$", found.read_text("WHEEL") or "", re.MULTILINE)]
    tag = "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))
    files = [file for file in found.files or [] if ".." not in file.parts and file.suffix != ".pyc"]
    scripts = {entry.name for entry in found.entry_points}  # pip writes these
    data = [file for file in found.files or [] if ".." in file.parts and file.name not in scripts]  # MPI's programs and libraries
    with ZipFile(folder / f"{found.name.replace('-', '_')}-{found.version}-{tag}.whl", "w", ZIP_STORED) as wheel:
        for file in files:
            if file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                wheel.write(str(found.locate_file(file)), str(file))
        for file in data:
            place = os.path.relpath(found.locate_file(file), sys.prefix)
            wheel.write(str(found.locate_file(file)), f"{found.name.replace('-', '_')}-{found.version}.data/data/{place}")
