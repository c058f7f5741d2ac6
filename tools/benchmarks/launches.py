"""Launches: commands run to their end and timed, in pairs that take turns in going first; and the C program built."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from collbench.launch.spawn import environment, find_mpiexec

A = TypeVar("A")
B = TypeVar("B")

_ROOT = Path(__file__).parents[2]
_DEADLINE_S = "120"
_BRIEF = 200


class Missing(Exception):
    """What this machine lacks for a benchmark, and where it comes from."""


class LaunchFailed(Exception):
    """A command and its last words."""

    def briefly(self) -> str:
        """The last line of it that holds words, for a sentence."""
        said = [line.strip() for line in str(self).splitlines() if any(letter.isalpha() for letter in line)]
        return said[-1][:_BRIEF] if said else ""


@dataclass(frozen=True)
class Launch:
    """A command that ended with code 0: its wall time in seconds and what it printed."""

    wall_s: float
    out: str


def launch(command: Sequence[str]) -> Launch:
    """Runs a command in an empty folder. Raises LaunchFailed if it fails or takes longer than two minutes."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        line = ["timeout", _DEADLINE_S, *command]
        start = time.perf_counter()
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, env=environment_of_launch(), check=False)
        wall_s = time.perf_counter() - start
    if done.returncode:
        raise LaunchFailed(f"{' '.join(Path(word).name for word in command)} ended with code {done.returncode}: {done.stderr}")
    return Launch(wall_s, done.stdout)


def environment_of_launch() -> dict[str, str]:
    """The environment that `launch` gives."""
    return environment(os.environ)


def pairs(a: Callable[[], A], b: Callable[[], B], n: int) -> list[tuple[A, B]]:
    """n pairs, a first in every other one, after one pair that only warms caches (not before a single one)."""
    if n > 1:
        a(), b()
    found = []
    for i in range(n):
        if i % 2:
            second, first = b(), a()
        else:
            first, second = a(), b()
        found.append((first, second))
    return found


def collbench(*arguments: str) -> list[str]:
    """The command line as a user types it: the script beside this Python, else the module."""
    script = Path(sys.prefix) / "bin" / "collbench"
    return [*([str(script)] if script.exists() else [sys.executable, "-m", "collbench"]), *arguments]


def module(name: str, *arguments: str) -> list[str]:
    """A module of this folder as a program."""
    return ["env", f"PYTHONPATH={_ROOT}", sys.executable, "-m", f"tools.benchmarks.{name}", *arguments]


def mpiexec(*program: str, ranks: int = 2) -> list[str]:
    """Ranks of a program. Raises Missing."""
    found = find_mpiexec(os.environ)
    if found is None:
        raise Missing("no mpiexec: pip install 'collbench[mpich]'")
    return [str(found), "-n", str(ranks), *program]


@cache
def c_program() -> str:
    """direct.c, built with the environment's mpicc. Raises Missing."""
    beside = Path(sys.prefix) / "bin" / "mpicc"
    mpicc = str(beside) if beside.exists() else shutil.which("mpicc")
    if mpicc is None or not shutil.which("cc"):
        raise Missing("no mpicc: pip install 'collbench[mpich]', and a C compiler (apt install gcc libc6-dev)")
    return compiled(mpicc, Path(__file__).with_name("direct.c"))


@cache
def compiled(compiler: str, source: Path, *flags: str) -> str:
    """A program of one C file, built once in this process. Raises Missing with the compiler's words."""
    built = Path(_build_folder().name) / source.stem
    line = [compiler, "-O2", *flags, "-o", str(built), str(source)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"{source.name} does not build: {done.stderr}")
    return str(built)


@cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    """Lives as long as this process."""
    return tempfile.TemporaryDirectory(prefix="benchmark-build-")
