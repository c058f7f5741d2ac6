"""Batch scripts in tests: emit them, read their directives, and run them in a job with a double of srun."""

import re
from pathlib import Path

from tests.cli.command import environment, run_here
from tests.plugins.deploy.recorded import COMMAND, Recorded, run_by_bash


def emit(folder: Path, *options: str, command: tuple[str, ...] = COMMAND) -> str:
    done = run_here(folder, "emit", "slurm", *options, "--", *command)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def asked(script: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE))}


def play(folder: Path, script: str, env: dict[str, str] | None = None) -> Recorded:
    own = environment({"SLURM_JOB_ID": "77", **(env or {})})
    return run_by_bash(folder, script, env={**own, "PATH": f"{folder}:{own['PATH']}"})
