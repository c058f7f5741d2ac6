"""`--quiet` prints results and errors only: no notes, no quality, no next command, nothing on stderr."""

from pathlib import Path

import pytest

from tests.cli.command import run
from tests.conftest import needs_command, needs_plugin

pytestmark = pytest.mark.system

COMMANDS = [["allreduce", "--sizes", "8,1K"], ["pairs"], ["hunt"], ["workload", "data-parallel", "--model", "resnet50"], ["check"]]
NOTES = (
    "quality:", "next:", "few samples: ", "simulated: computed", "blank:", "CI:", "flags:", "is named", "rounds: ",
    "expected step time", "exit code",
)  # fmt: skip


@pytest.mark.parametrize("command", [pytest.param(words, marks=needs_command(words[0]), id=words[0]) for words in COMMANDS])
def test_only_results_are_printed(command: list[str], tmp_path: Path) -> None:
    brief = () if command == ["check"] else ("--max-time", "0.05")
    done = run(tmp_path, *command, "--backend", "simulated", "--ranks", "4", "--quiet", *brief)
    assert done.returncode in (0, 3), done.stderr
    assert done.stderr == ""
    assert "simulated" in done.stdout
    assert not [note for note in NOTES if note in done.stdout], done.stdout


@needs_plugin("hunt")
def test_notes_are_printed_without_it(tmp_path: Path) -> None:
    done = run(tmp_path, "hunt", "--backend", "simulated", "--ranks", "4", "--max-time", "0.05")
    assert "rounds: " in done.stdout
