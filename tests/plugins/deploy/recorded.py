"""Run an emitted shell script by bash, with doubles of its launchers that store their arguments."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from collbench.plugins.deploy.job import LauncherKind, Value, job_of

COMMAND = ("allreduce", "--sizes", "1K-1G")
LAUNCHERS = ("mpirun", "mpiexec", "torchrun", "srun")
# Stores its arguments and environment; with GO_ON it executes the command after its options, as srun does
_STAND_IN = """#!/bin/bash
printf '%s\\0' $# "$@"
/usr/bin/env -0
printf 'printed:\\0'
while [[ $1 == --* ]]; do shift; done
[[ -z ${GO_ON:-} ]] || exec "$@"
exit "${CODE:-0}"
"""


@dataclass(frozen=True)
class Recorded:
    """The exit code of the script, its stderr (`said`), the launcher's arguments and environment (none: it was not started), and the output
    of the command that it started."""

    code: int
    said: str
    words: list[str]
    env: dict[str, str]
    printed: str = ""

    def after(self, option: str) -> str:
        return self.words[self.words.index(option) + 1]

    @property
    def options(self) -> list[str]:
        return list(takewhile(lambda word: word.startswith("--"), self.words))

    @property
    def command(self) -> list[str]:
        return self.words[len(self.options) :]


def program(folder: Path, name: str, text: str) -> Path:
    """Write a program into the folder."""
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def run_by_bash(
    folder: Path, script: str, *argv: str, launchers: Sequence[str] = LAUNCHERS, env: Mapping[str, str] | None = None
) -> Recorded:
    """Run a script in the folder with these arguments; `launchers`: the doubles in PATH, `env`: more variables."""
    for name in launchers:
        program(folder, name, _STAND_IN)
    (folder / "job.sh").write_text(script)
    shell = {"PATH": f"{folder}:/usr/bin:/bin", **(env or {})}
    line = ["bash", str(folder / "job.sh"), *argv]
    done = subprocess.run(line, cwd=folder, env=shell, capture_output=True, text=True, timeout=60, check=False)
    stored, _, printed = done.stdout.partition("printed:\0")
    count, *rest = stored.split("\0")
    variables = dict(each.split("=", 1) for each in rest[int(count or 0) :] if each)
    return Recorded(done.returncode, done.stderr, rest[: int(count or 0)], variables, printed)


def text(kind: LauncherKind, said: Mapping[str, Value], command: Sequence[str] = COMMAND) -> str:
    return kind.render(job_of(kind, tuple(command), said))


def recorded(
    folder: Path,
    kind: LauncherKind,
    said: Mapping[str, Value],
    *argv: str,
    command: Sequence[str] = COMMAND,
    launchers: Sequence[str] = LAUNCHERS,
    env: Mapping[str, str] | None = None,
) -> Recorded:
    """Run the file of a kind with these settings."""
    return run_by_bash(folder, text(kind, said, command), *argv, launchers=launchers, env=env)
