"""Further backends, each in an environment of its own: where that is, collbench started with it, and two hosts to run it across.

A test asks `environment_of("jax")`, which skips with the reason where the environment is missing.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from collbench.plugins.libraries.ucc.library import CHOSEN
from collbench.results.reader import Run, read_run
from tests.cli.command import Finished, run
from tests.conftest import ROOT
from tests.testbeds import Hosts

ENVIRONMENTS = {
    "jax": ".venv-jax", "tensorflow": ".venv-tensorflow", "oneccl": ".venv-oneccl", "horovod": ".venv-horovod",
    "horovod-tensorflow": ".venv-horovod-tensorflow", "nixl": ".venv-nixl",
}  # fmt: skip
BY_HAND = {"torchcomms": ".venv-torchcomms"}  # no recipe installs it: its backend's file describes the build
_FOLDERS = ENVIRONMENTS | BY_HAND
OWN = {"ucc": {CHOSEN: os.environ.get(CHOSEN, "")}}  # those that this Python runs, and the variables that they need
PAYLOAD = 1448 / 1514  # bytes of TCP's payload in a full Ethernet frame, as the beds' shaper counts frames
LINK_BYTES_PER_S = 125e6  # 1 Gbit/s


def python_of(stack: str) -> Path | None:
    """The Python of a stack's environment, or None where `make plugin-environments` has not made it."""
    python = ROOT / _FOLDERS[stack] / "bin/python"
    whole = python.exists() and not (python.parents[1] / ".unfinished").exists()
    return python if whole else None


def environment_of(stack: str) -> str:
    """The same for a test, which is skipped where the environment is missing."""
    python = python_of(stack)
    if python is None:
        get = f"it is built by hand, see collbench/backends/{stack}.py" if stack in BY_HAND else "`make plugin-environments` brings it"
        pytest.skip(f"no {stack} here: {get}, into {_FOLDERS[stack]}")
    return str(python)


def program_of(stack: str) -> tuple[str, ...]:
    return (sys.executable if stack in OWN else environment_of(stack), "-m", "collbench")


def collbench_of(stack: str, folder: Path, *argv: str, env: Mapping[str, str] | None = None, timeout: float = 60) -> Finished:
    return run(folder, *argv, program=program_of(stack), env=env, timeout=timeout)


def rows_of(done: Finished) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def across(hosts: Hosts, stack: str, out: Path, words: Sequence[str], *, timeout: float = 60, env: Mapping[str, str] | None = None) -> Run:
    """`collbench words…` with one rank on each of the hosts, as torchrun would start it; the run that rank 0 stored in `out`."""
    line = ["timeout", "--kill-after=5", str(timeout), *program_of(stack), *words, "--out", str(out)]
    launched = [hosts.start(rank, line, env={**_rank_of(hosts, rank), **OWN.get(stack, {}), **(env or {})}) for rank in range(hosts.count)]
    said = [process.communicate(timeout=timeout + 10)[1] for process in launched]
    assert [process.returncode for process in launched] == [0] * hosts.count, said
    return read_run(out)


def share_of_link(hosts: Hosts, stack: str, operation: str, out: Path, words: Sequence[str] = ()) -> float:
    """What an operation of 16 MiB, which two hosts at 1 Gbit/s carry without an error, makes of the link's payload."""
    line = [operation, "--backend", stack, "--sizes", "16M", "--iterations", "4", "--warmup", "2", *words]
    (row,) = across(hosts, stack, out, line).rows
    assert (row.na, row.wrong, row.nodes) == (None, 0, 2)
    assert row.busbw_bytes_per_s is not None
    return row.busbw_bytes_per_s / (PAYLOAD * LINK_BYTES_PER_S)


def _rank_of(hosts: Hosts, rank: int) -> dict[str, str]:
    actual = {"RANK": rank, "WORLD_SIZE": hosts.count, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 29511}
    return {name: str(value) for name, value in actual.items()} | {"MASTER_ADDR": hosts.addresses[0], "PYTHONPATH": str(ROOT)}
