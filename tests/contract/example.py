"""The example plug-in as its users install it, and packages that are broken in some way."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

EXAMPLE = Path(__file__).parent / "example_plugin"


def installed(folder: Path) -> Path:
    """Where pip has put the example, without reaching for any network."""
    source = shutil.copytree(EXAMPLE, folder / "source")  # pip builds within it
    into = folder / "site"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--target", str(into)]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into


def package(site: Path, name: str, points: str, modules: Mapping[str, str] = {}) -> None:
    """A package with these entry points, a file, and modules by name, as pip leaves it in a folder of packages."""
    about = site / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(points)
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)
