"""The manual page, which `tools/man_page` makes from the parsers when a wheel is built."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from argparse import SUPPRESS
from pathlib import Path

import pytest

from collbench import __version__
from collbench.cli.main import all_parsers
from collbench.cli.parser import actions_of
from tests.cli.command import ROOT
from tests.conftest import cannot

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def page() -> str:
    env = {**os.environ, "SOURCE_DATE_EPOCH": "86400"}
    done = subprocess.run([sys.executable, ROOT / "tools/man_page"], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def rendered(page: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    if not shutil.which("man"):
        cannot("no man here: apt-get install man-db")
    file = tmp_path_factory.mktemp("man") / "collbench.1"
    file.write_text(page, encoding="utf-8")
    env = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    done = subprocess.run(["man", "--warnings", "-l", str(file)], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)


def test_the_head(page: str) -> None:
    assert page.startswith(f'.TH COLLBENCH 1 "1970-01-02" "collbench {__version__}" "User Commands"\n.SH NAME\ncollbench ')


def test_it_renders_with_every_command_and_every_option(rendered: str) -> None:
    headings = re.findall(r"^([A-Z][A-Z ]+)$", rendered, re.MULTILINE)
    assert [*headings[:3], *headings[-4:]] == [
        "NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS OF OPERATIONS AND RUN", "ENVIRONMENT", "FILES", "EXIT STATUS",
    ]  # fmt: skip
    words = set(re.findall(r"[\w-]+", rendered))
    for name, parser in all_parsers()[1].items():
        options = {option for action in actions_of(parser) if action.help != SUPPRESS for option in action.option_strings}
        assert {name, *options} - {"-h", "--help"} <= words, name
    assert max(map(len, rendered.splitlines())) <= 110


@pytest.mark.parametrize("command", ["bdist_wheel", "editable_wheel"])
def test_a_wheel_has_it(command: str, tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, sources)
    shutil.copytree(ROOT / "collbench", sources / "collbench", ignore=shutil.ignore_patterns("__pycache__"))
    (sources / "tools").mkdir()
    shutil.copy(ROOT / "tools/man_page", sources / "tools")
    words, env = [sys.executable, "setup.py", "-q", command], {**os.environ, "CC": "false"}
    done = subprocess.run(words, cwd=sources, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next((sources / "dist").glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/share/man/man1/collbench.1"))
        assert wheel.read(name).startswith(b".TH COLLBENCH 1 ")


def test_it_needs_none_of_the_packages_that_a_build_does_not_have() -> None:
    """pip builds a wheel in an environment with what `build-system.requires` names alone."""
    blocked = "import runpy, sys; sys.modules.update(dict.fromkeys(('numpy', 'rich', 'psutil', 'zmq', 'ml_dtypes', 'jinja2')))"
    line = [sys.executable, "-c", f"{blocked}; runpy.run_path(sys.argv[1], run_name='__main__')", str(ROOT / "tools/man_page")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(".TH ")
