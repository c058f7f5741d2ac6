"""No table and no sentence of a command is wider than the terminal, on stored runs; a pipe gets every column."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.command import run_here
from tests.conftest import line_of_command
from tests.stored import stored_reports

pytestmark = pytest.mark.system

REPORTS = Path(__file__).parents[2] / "reports"
TO_COPY = ("  collbench ", "  what = ")  # commands and files that `gate` proposes stay whole
COMMANDS = (
    "compare {stored}/shaped-1gbit-pmi2 {stored}/shaped-1gbit-pmix", "compare {reports}/regression/before {reports}/regression/after",
    "report {reports}/pairs-trials/host-0", "report {reports}/training", "baseline show base", "baseline diff base night-1 night-4",
    "history base", "gate --baseline base {reports}/regression/after", "gate --self-test --trials 1",
    "doctor --from {reports}/example-node", "doctor --launch", "probe --from {reports}/example-node",
    "probe --from {reports}/example-node --format matrix", "peak allreduce --from {reports}/example-node --nodes 4 --measured 364.9",
    "backends", "explain", "explain CB2101", "run quick --ranks 2 --dry-run",
    "workload data-parallel --model bert-large --ranks 4 --dry-run",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a baseline of four allocations: the launches of a stored run, each one an allocation."""
    here = tmp_path_factory.mktemp("widths")
    for number in range(1, 5):
        shutil.copytree(REPORTS / "regression" / "before" / f"launch-{number}", here / f"night-{number}")
        page = here / f"night-{number}" / "run.json"
        page.write_text(json.dumps({**json.loads(page.read_text("utf-8")), "allocation_id": f"night-{number}"}))
        assert run_here(here, "baseline", "add", "base", f"night-{number}").returncode == 0
    return here


def printed(folder: Path, command: str, width: int | None = None) -> list[str]:
    words = command.format(reports=REPORTS, stored=stored_reports()).split()
    size = os.terminal_size((width or 80, 24))
    with patch("os.get_terminal_size", lambda *_: size):
        done = run_here(folder, *words, env={"COLLBENCH_TTY": "stdout" if width else "0", "NO_COLOR": "1"})
    assert done.returncode < 4 and done.stdout, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", [line_of_command(command) for command in COMMANDS])
@given(width=st.integers(40, 200))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_line_is_wider_than_the_terminal(command: str, folder: Path, width: int) -> None:
    wide = [line for line in printed(folder, command, width) if len(line) > width]
    to_copy = ("    ",) if command == "doctor --launch" else TO_COPY
    assert [line for line in wide if not line.startswith(to_copy)] == []


@pytest.mark.parametrize("command", [line_of_command(command) for command in COMMANDS])
def test_a_pipe_gets_what_a_very_wide_terminal_gets(command: str, folder: Path) -> None:
    assert printed(folder, command) == printed(folder, command, 100_000)
