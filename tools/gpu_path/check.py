"""What the steps of the GPU check share: outcomes, programs with a time limit, two ranks on one GPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOTAL_S = 480.0
RESERVED_S = 25.0  # for the report and the summary
FAKE_GPU = "FAKE GPU (test double)"  # the name of the device in tests/fake_gpu: its rates mean nothing
_TERM_S = 3.0  # from SIGTERM to SIGKILL


class Outcome(StrEnum):
    """The outcome of a step."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible here"


class StepEnded(Exception):
    """A step that did not pass: the reason, and its measurements."""

    outcome: Outcome

    def __init__(self, reason: str, figure: str = "") -> None:
        super().__init__(reason)
        self.figure = figure


class Failed(StepEnded):
    """The step found a defect."""

    outcome = Outcome.FAILED


class NotPossible(StepEnded):
    """The step is not possible on this machine."""

    outcome = Outcome.NOT_POSSIBLE


@dataclass(frozen=True)
class Result:
    """One line of the summary."""

    step: str
    outcome: Outcome
    figure: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Finished:
    """A program that has ended; `code` is None if its time limit ended it."""

    code: int | None
    out: str
    err: str
    limit_s: float

    def rows(self) -> list[dict[str, Any]]:
        """Return the JSON objects on its standard output, one per line."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def last_line(self) -> str:
        """Return the last line of its standard error, else of its output."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def expect(self, *codes: int) -> Finished:
        """Return itself. Raises Failed for another exit code."""
        if self.code is None:
            raise Failed(f"stopped after its time limit of {self.limit_s:.0f} s: {self.last_line()}")
        if self.code not in codes:
            raise Failed(f"exit code {self.code}: {self.last_line()}")
        return self


@dataclass
class TwoRanks:
    """How two ranks share the GPU: the variables of each rank, and whether this check or collbench starts them."""

    how: str
    common: dict[str, str] = field(default_factory=dict)
    host_ids: bool = False  # each rank has its own NCCL_HOSTID, so each is started here


@dataclass(frozen=True)
class Held:
    """The launch with a stopped rank: the answer of NCCL's RAS, and whether collbench ended the launch."""

    ras_sentence: str | None
    ras_missing: str | None  # the reason why RAS did not answer
    aborted: bool


@dataclass
class Check:
    """The machine, the output folder, the time left, and the results of earlier steps."""

    out: Path
    python: str
    sizes: str
    max_time: float
    gpu: str
    began: float = field(default_factory=time.monotonic)
    step_ends: float = 0.0
    number: int = 0
    nccl: tuple[int, ...] | None = None  # the version, once `backends` has run
    nccl_path: str = ""
    backends: dict[str, dict[str, Any]] = field(default_factory=dict)
    two_ranks: TwoRanks | None = None
    runs: list[Path] = field(default_factory=list)
    mps: dict[str, str] = field(default_factory=dict)
    held: Held | None = None

    @property
    def fake(self) -> bool:
        """Whether the device is the test double: its rates are not checked."""
        return self.gpu == FAKE_GPU

    def left_s(self) -> float:
        """Return the seconds until the step's limit."""
        return self.step_ends - time.monotonic()

    @cached_property
    def environment(self) -> dict[str, str]:
        """Return the environment of every program: the checkout's packages first, kernels compiled again."""
        paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("COLLBENCH_", "NCCL_"))}
        cache = os.environ.get("COLLBENCH_CACHE", str(self.out / "kernels"))
        return kept | {"PYTHONPATH": os.pathsep.join(paths), "COLLBENCH_CACHE": cache, "PYTHONDONTWRITEBYTECODE": "1"}

    def begin(self, command: Sequence[str | Path], **variables: str) -> subprocess.Popen[str]:
        """Start a program in its own process group, its output in logs/."""
        self.number += 1
        stem = self.out / "logs" / f"{self.number:02d}-{Path(command[0]).name}"
        with stem.with_suffix(".out").open("w") as out, stem.with_suffix(".err").open("w") as err:
            err.write(f"$ {' '.join([*(f'{k}={v}' for k, v in variables.items()), *map(str, command)])}\n")
            err.flush()
            process = subprocess.Popen(
                [str(word) for word in command], env=self.environment | variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                text=True, start_new_session=True, cwd=self.out,
            )  # fmt: skip
        process.logs = stem  # type: ignore[attr-defined]
        return process

    def end(self, process: subprocess.Popen[str], limit_s: float = 60.0) -> Finished:
        """Wait for a program and return its output; stop it at its limit, or at the step's."""
        limit_s = max(0.5, min(limit_s, self.left_s()))
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
            stop_group(process)
        stem: Path = process.logs  # type: ignore[attr-defined]
        text = stem.with_suffix(".err").read_text(errors="replace").partition("\n")[2]
        return Finished(code, stem.with_suffix(".out").read_text(errors="replace"), text, limit_s)

    def run(self, *command: str | Path, limit_s: float = 60.0, **variables: str) -> Finished:
        """Run a program to its end."""
        return self.end(self.begin(command, **variables), limit_s)

    def collbench(self, *words: str, limit_s: float = 60.0, **variables: str) -> Finished:
        """Run a command of collbench to its end."""
        return self.run(self.python, "-P", "-m", "collbench", *words, limit_s=limit_s, **variables)

    def folder(self, name: str) -> str:
        """Return a new run folder, which the report includes."""
        self.runs.append(self.out / "runs" / name)
        return str(self.runs[-1])

    def measure(self, name: str, *words: str, limit_s: float = 60.0, codes: Sequence[int] = (0,), **variables: str) -> list[dict[str, Any]]:
        """Measure into runs/NAME with one rank and return the rows. Raises Failed for an unexpected exit code."""
        self.needs_nccl()
        command = (*words, "--ranks", "1", "--format", "json", "--quiet", "--out", self.folder(name))
        rows = self.collbench(*command, limit_s=limit_s, **variables).expect(*codes).rows()
        if not rows:
            raise Failed("no row was printed")
        return rows

    def needs_nccl(self) -> None:
        """Raise NotPossible if `backends` found that NCCL cannot be used."""
        if self.nccl is None:
            why = self.backends.get("nccl", {}).get("why") or "`collbench backends` did not report an available NCCL"
            raise NotPossible(f"NCCL cannot be used: {why}")

    def start_pair(self, name: str, *words: str, **variables: str) -> list[subprocess.Popen[str]]:
        """Start two ranks on the one GPU in the way that two_ranks found; the first process prints."""
        if self.two_ranks is None:
            raise NotPossible("two ranks on one GPU are not possible, see the step `two ranks`")
        line = [self.python, "-P", "-m", "collbench", *words, "--format", "json", "--quiet", "--out", self.folder(name)]
        common = {**self.two_ranks.common, **self.mps, **variables}
        if not self.two_ranks.host_ids:
            return [self.begin([*line, "--ranks", "2"], **common)]
        port = str(free_port())
        secret = os.urandom(16).hex()
        torchrun = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "COLLBENCH_SECRET": secret}
        return [
            self.begin(line, **common, **torchrun, RANK=str(rank), LOCAL_RANK=str(rank), NCCL_HOSTID=f"gpu-check-{rank}")
            for rank in (0, 1)
        ]  # fmt: skip

    def pair(self, name: str, *words: str, limit_s: float = 60.0, **variables: str) -> Finished:
        """Run two ranks on the one GPU to their end; return the output of rank 0."""
        self.needs_nccl()
        processes = self.start_pair(name, *words, **variables)
        first, *_ = [self.end(process, limit_s) for process in processes]
        return first


def free_port() -> int:
    """Return a free TCP port on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def stop_group(process: subprocess.Popen[str]) -> None:
    """End a program and all processes of its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
