"""Run an emitted shell script by bash, with a double of its launcher that stores its arguments."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collbench.plugins.deploy.job import LauncherKind, Value, job_of
from tests.plugins.deploy.batch import program

COMMAND = ("allreduce", "--sizes", "1K-1G")
_STAND_IN = """#!/bin/bash
printf '%s\\0' $# "$@"
/usr/bin/env -0
"""


@dataclass(frozen=True)
class Recorded:
    """The exit code of the script, its stderr (`said`), and the launcher's arguments and environment (none: it was not started)."""

    code: int
    said: str
    words: list[str]
    env: dict[str, str]

    def after(self, option: str) -> str:
        return self.words[self.words.index(option) + 1]


def text(kind: LauncherKind, said: Mapping[str, Value], command: Sequence[str] = COMMAND) -> str:
    return kind.render(job_of(kind, tuple(command), said))


def recorded(
    folder: Path,
    kind: LauncherKind,
    said: Mapping[str, Value],
    *argv: str,
    command: Sequence[str] = COMMAND,
    launchers: Sequence[str] = ("mpirun", "mpiexec", "torchrun"),
    env: Mapping[str, str] | None = None,
) -> Recorded:
    """Run the file in the folder with these arguments; `launchers`: the doubles in PATH, `env`: more variables."""
    for name in launchers:
        program(folder, name, _STAND_IN)
    script = folder / "job.sh"
    script.write_text(text(kind, said, command))
    shell = {"PATH": f"{folder}:/usr/bin:/bin", **(env or {})}
    done = subprocess.run(["bash", script, *argv], cwd=folder, env=shell, capture_output=True, text=True, timeout=20, check=False)
    count, *rest = done.stdout.split("\0")
    variables = dict(each.split("=", 1) for each in rest[int(count or 0) :] if each)
    return Recorded(done.returncode, done.stderr, rest[: int(count or 0)], variables)
