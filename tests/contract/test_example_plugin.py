"""A backend and an operation of another package: installed by pip, listed, run and verified like the project's own."""

import json
import os
import re
import tomllib
from pathlib import Path

import pytest

from site_pages.links import expanded
from tests.cli.command import run
from tests.conftest import ROOT, sample
from tests.contract.example import EXAMPLE, installed
from tests.contract.launch import launch

FILES = sorted((EXAMPLE / "collbench_example").glob("*.py"))
pip = pytest.mark.long


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("example"))


def test_a_backend_and_an_operation_are_short() -> None:
    lines = {file.name: file.read_text().count("\n") for file in FILES if file.name != "__init__.py"}
    assert sorted(lines) == ["connection.py", "swap.py"] and max(lines.values()) < 60


def test_its_entry_points_are_all_that_collbench_needs() -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    assert project["entry-points"] == {
        "collbench.backends": {"connection": "collbench_example.connection:ConnectionBackend"},
        "collbench.operations": {"swap": "collbench_example.swap:SWAP"},
    }


def test_the_pages_show_the_files_as_they_are() -> None:
    for page, name in (("add-a-backend", "connection.py"), ("add-an-operation", "swap.py")):
        path = f"docs/develop/{page}.md"
        shown = expanded((ROOT / path).read_text(encoding="utf-8"), path)
        for file in (EXAMPLE / "collbench_example" / name, EXAMPLE / "pyproject.toml"):
            assert f"\n{file.read_text()}" in shown, file.name


@pip
def test_both_are_listed(site: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    listed = run(tmp_path, "backends", env=env)
    assert listed.returncode == 0 and listed.stderr == ""
    assert re.search(r"^ *connection +available +multiprocessing\.connection of Python 3\.", listed.stdout, re.MULTILINE)
    assert re.search(r"\bswap\b", run(tmp_path, "--help", env=env).stdout)
    helped = run(tmp_path, "swap", "--help", env=env).stdout
    assert helped.startswith("usage: collbench swap ") and "ranks 0 and 1, 2 and 3 … exchange their" in helped


@pip
def test_the_command_line_measures_both(site: Path, tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    done = run(tmp_path, "p2p", "--backend", "connection", "--sizes", "8,64K", "--window", "2", "--format", "json", env=env)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(row["operation"], row["wrong"], row["checked"], row["na"]) for row in rows}
    assert (done.returncode, found) == (0, {
        ("p2p_latency", 0, 1, None), ("p2p_bandwidth", 0, 1, None),
        ("p2p_bidirectional", None, 0, "connection supports pairs of ranks, in one direction at a time"),
    }), done.stderr  # fmt: skip
    done = run(tmp_path, "swap", "--backend", "simulated", "--ranks", "4", "--sizes", "64K", "--format", "json", env=env)
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (done.returncode, row["operation"], row["ranks"], row["wrong"], row["checked"]) == (0, "swap", 4, 0, 1)
    odd = run(tmp_path, "swap", "--backend", "simulated", "--ranks", "3", "--sizes", "64K", env=env)
    assert odd.returncode == 2 and "swap needs an even number of ranks, not 3" in odd.stdout + odd.stderr


@pip
@pytest.mark.parametrize(("backend", "n"), sample([("connection", 2), ("connection", 3), ("simulated", 4), ("mpi", 2)], 2))
def test_the_contract_tests_launch_runs_over_it(backend: str, n: int, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "mpi":
        pytest.importorskip("mpi4py")
    monkeypatch.setenv("PYTHONPATH", str(site))
    operations = ["p2p_latency", "p2p_bandwidth"] if backend == "connection" else ["swap"]
    asked = {"operations": operations, "sizes": [1, 1003, 300_001], "dtypes": ["float32", "int8"], "window": 3}
    outcome = launch(tmp_path, backend, n, [asked])
    assert (outcome.code, len(outcome.rows)) == (0, 6 * len(operations)), outcome.stderr
    assert {(row.na, row.checked, row.wrong, row.ranks) for row in outcome.rows} == {(None, 1, 0, n)}
