"""Traces of real jobs of torch.distributed on Gloo: what the readers return is what the job called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collbench.plugins.traces import chakra, kineto
from collbench.plugins.traces.model import DTYPES, KINDS, NONE, UNKNOWN, Part, RankTrace

pytestmark = pytest.mark.system

pytest.importorskip("torch")
JOB = Path(__file__).with_name("torch_job.py")


def record(folder: Path, job: str, world: int) -> None:
    """Run a job, which writes its traces into the folder."""
    ranks = [
        subprocess.Popen([sys.executable, str(JOB), str(rank), str(world), str(folder), job], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        for rank in ranks:
            assert rank.wait(timeout=100) == 0, rank.stderr and rank.stderr.read()
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def calls_of(trace: RankTrace) -> list[list[Any]]:
    """Return the operations in the form of the job's log."""
    found = []
    for x in trace.operations:
        splits = trace.splits[x["splits"]] if x["splits"] != UNKNOWN else ((), ())
        dtype = DTYPES[x["dtype"]] if x["dtype"] != NONE else ""
        ranks = list(trace.groups[x["group"]].ranks)
        found.append([KINDS[x["kind"]], dtype, int(x["sent"]), int(x["received"]), ranks, int(x["root"]), *map(list, splits)])
    return found


def check(folder: Path, world: int) -> list[tuple[RankTrace, RankTrace]]:
    """Compare the traces with the logs, and return them by rank: execution trace, Kineto trace."""
    both = []
    for rank in range(world):
        called = json.loads((folder / f"calls_{rank}.json").read_text())
        paths = folder / f"et_{rank}.json", folder / f"kineto_{rank}.json"
        for reader, path in zip((chakra, kineto), paths, strict=True):
            assert [each.recognizes(path, path.read_bytes()[: 1 << 16]) for each in (chakra, kineto)] == [
                reader is chakra,
                reader is kineto,
            ]
        [execution], [events] = chakra.read(paths[0]), kineto.read(paths[1])
        assert calls_of(execution) == called
        # Kineto's events of a scatter have the tensors to send only, which ranks other than the root do not have.
        assert calls_of(events) == [[call[0], "" if call[0] == "scatter" and call[5] != rank else call[1], *call[2:]] for call in called]
        for trace in (execution, events):
            assert (trace.rank, trace.world) == (rank, world)
            assert trace.steps.tolist() == [0, len(called) // 2]
        both.append((execution, events))
    return both


@pytest.mark.often
@pytest.mark.long
def test_every_operation_of_two_ranks(tmp_path):
    record(tmp_path, "plain", 2)
    for execution, events in check(tmp_path, 2):
        assert [group.name for group in execution.groups] == [group.name for group in events.groups] == ["0 or 1"]
        assert execution.missing >= {Part.REDOPS, Part.START_TIMES, Part.QUEUES, Part.COMPUTE, Part.SEQUENCES}
        assert not execution.missing & {Part.SIZES, Part.DTYPES, Part.ROOTS, Part.GROUPS, Part.SPLITS, Part.STEPS}
        assert events.missing - {Part.DTYPES} == {Part.REDOPS, Part.SEQUENCES, Part.DEPENDENCIES}
        x = events.operations
        assert (x["created"] <= x["start"]).all() and (x["start"] <= x["end"]).all() and (np.diff(x["created"]) > 0).all()
        assert (events.compute[:, 0] < events.compute[:, 1]).all() and (events.compute[1:, 0] > events.compute[:-1, 1]).all()
        # Almost all calls wait for their end: each operation but the asynchronous ones is waited for by the next.
        assert execution.after is not None
        offsets, indices = execution.after
        assert (np.diff(offsets)[1:] > 0).all() and (indices < np.repeat(np.arange(len(x)), np.diff(offsets))).all()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("job", "world"), [("ddp", 3), ("fsdp", 2), ("tensor", 4), ("plain", 4)])
def test_a_training_job(tmp_path, job, world):
    record(tmp_path, job, world)
    for execution, _ in check(tmp_path, world) if job != "tensor" else ():
        assert Part.SIZES not in execution.missing
    for rank in range(world) if job == "tensor" else ():
        called = json.loads((tmp_path / f"calls_{rank}.json").read_text())
        [execution] = chakra.read(tmp_path / f"et_{rank}.json")
        assert calls_of(execution) == called
        assert {group.what for group in execution.groups} == {"mesh_tp"} and Part.REDOPS not in execution.missing
        # Kineto's events of Gloo do not have the group. The job has several of the same size.
        [events] = kineto.read(tmp_path / f"kineto_{rank}.json")
        assert Part.GROUPS in events.missing and events.operations["sent"].tolist() == [call[2] for call in called]
