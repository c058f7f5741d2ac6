"""Batch scripts in tests: emit them, read their directives, and run them by bash with a double of srun."""

import re
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tests.cli.command import environment, run_here

SWEEP = ("allreduce", "--sizes", "1K-1G")
SEEN = ("X", "SLURM_KILL_BAD_EXIT", "MELLANOX_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
# Stores its arguments; with GO_ON it executes the command after its options, as srun does
SRUN = f"""\
#!/bin/bash
printf '%s\\0' $# "$@"
for name in {" ".join(SEEN)}; do printf '%s\\0' "${{!name-unset}}"; done
while [[ $1 == --* ]]; do shift; done
[[ -z ${{GO_ON:-}} ]] || exec "$@"
exit "${{CODE:-0}}"
"""


def emit(folder: Path, *told: str, command: tuple[str, ...] = SWEEP) -> str:
    done = run_here(folder, "emit", "slurm", *told, "--", *command)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def asked(script: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE))}


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class Called:
    """The run of a script with a double of srun: srun's options, command and environment, and the exit code."""

    code: int
    options: list[str]
    command: list[str]
    env: dict[str, str]
    rest: str
    errors: str


def play(folder: Path, script: str, env: dict[str, str] | None = None) -> Called:
    bin_ = folder / "bin"
    bin_.mkdir(exist_ok=True)
    program(bin_, "srun", SRUN)
    own = environment({"SLURM_JOB_ID": "77", **(env or {})})
    own["PATH"] = f"{bin_}:{own['PATH']}"
    done = subprocess.run(["bash"], input=script, cwd=folder, env=own, capture_output=True, text=True, timeout=60, check=False)
    count, *actual = done.stdout.split("\0") if done.stdout else ["0"]
    words, seen = actual[: int(count)], actual[int(count) :]
    options = list(takewhile(lambda word: word.startswith("--"), words))
    found = {name: value for name, value in zip(SEEN, seen, strict=False) if value != "unset"}
    return Called(done.returncode, options, words[len(options) :], found, "".join(seen[len(SEEN) :]), done.stderr)
