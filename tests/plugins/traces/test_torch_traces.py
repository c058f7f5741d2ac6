"""Real jobs of torch.distributed on Gloo: what the readers return is what the job called, and a replay has the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from collbench.operations.dtypes import dtype_named
from collbench.operations.traffic import elements
from collbench.plugins.traces import chakra, kineto
from collbench.plugins.traces.model import DTYPES, KINDS, NONE, UNKNOWN, Part
from collbench.plugins.traces.replay_task import recording_of
from collbench.plugins.traces.step import ReplayOptions

pytestmark = pytest.mark.system

pytest.importorskip("torch")
JOB = Path(__file__).with_name("torch_job.py")
_WHOLE = {"allgather": 3, "reducescatter": 2, "alltoall": 2}  # the place of the whole buffer's elements in a call


def record(folder, job, world):
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


def calls_of(trace):
    """Return the operations in the form of the job's log."""
    found = []
    for x in trace.operations:
        splits = trace.splits[x["splits"]] if x["splits"] != UNKNOWN else ((), ())
        dtype = DTYPES[x["dtype"]] if x["dtype"] != NONE else ""
        ranks = list(trace.groups[x["group"]].ranks)
        found.append([KINDS[x["kind"]], dtype, int(x["sent"]), int(x["received"]), ranks, int(x["root"]), *map(list, splits)])
    return found


def check(folder, world):
    """Compare the traces with the logs, and return them by rank: execution trace, Kineto trace."""
    both = []
    for rank in range(world):
        called = json.loads((folder / f"calls_{rank}.json").read_text())
        paths = folder / f"et_{rank}.json", folder / f"kineto_{rank}.json"
        for reader, path in zip((chakra, kineto), paths, strict=True):
            start = path.read_bytes()[: 1 << 16]
            assert [each for each in (chakra, kineto) if each.recognizes(path, start)] == [reader]
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


def bytes_of(call):
    """Return the bytes of the whole buffer of a call that the job logged."""
    kind, dtype, sent, received, ranks, *_ = call
    parts = {"gather": sent, "scatter": received}
    number = len(ranks) * parts[kind] if kind in parts else call[_WHOLE[kind]] if kind in _WHOLE else max(sent, received)
    return int(number * dtype_named(dtype or "float32").size)


def checked(exchange, call, rank):
    kind, dtype, _, _, ranks, root, to, _ = call
    assert any(rank in group for group in exchange.groups)
    if kind in ("send", "recv"):
        assert (exchange.operation, exchange.groups) == ("p2p_message", (((rank, root) if kind == "send" else (root, rank)),))
    else:
        assert exchange.operation == kind and tuple(ranks) in exchange.groups
    if kind == "alltoallv":
        width = dtype_named(exchange.dtype).size
        assert elements(exchange.traffic, len(ranks), exchange.size_bytes // width)[rank].tolist() == to
    elif kind != "barrier":
        assert exchange.size_bytes == bytes_of(call)
    assert dtype in ("", exchange.dtype) and (root < 0 or exchange.root in (None, ranks.index(root)))


def replayed(folder, form, world):
    """Compare the exchanges of a replay of these traces with the logs: their bytes and their order."""
    found = recording_of([folder / f"{form}_{rank}.json" for rank in range(world)], ReplayOptions("all"))
    for rank in range(world):
        called = json.loads((folder / f"calls_{rank}.json").read_text())
        own = [each for each in found.step.exchanges if any(rank in group for group in each.groups)]
        assert len(own) == len(called)
        for exchange, call in zip(own, called, strict=True):
            # a type that the trace lacks is float32 in the replay
            checked(exchange, [call[0], call[1] if call[0] not in ("scatter",) else "", *call[2:]], rank)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("job", "world"), [("ddp", 3), ("fsdp", 2), ("plain", 4)])
def test_the_traces_and_the_replay_of_a_job_are_what_it_called(tmp_path, job, world):
    record(tmp_path, job, world)
    for execution, _ in check(tmp_path, world):
        assert Part.SIZES not in execution.missing
    for form in ("et", "kineto"):
        replayed(tmp_path, form, world)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_of_a_device_mesh_kinetos_events_lack_the_groups(tmp_path):
    """The job has several groups of the same size, so Kineto's traces cannot be replayed."""
    record(tmp_path, "tensor", 4)
    for rank in range(4):
        called = json.loads((tmp_path / f"calls_{rank}.json").read_text())
        [execution] = chakra.read(tmp_path / f"et_{rank}.json")
        assert calls_of(execution) == called
        assert {group.what for group in execution.groups} == {"mesh_tp"} and Part.REDOPS not in execution.missing
        [events] = kineto.read(tmp_path / f"kineto_{rank}.json")
        assert Part.GROUPS in events.missing and events.operations["sent"].tolist() == [call[2] for call in called]
    replayed(tmp_path, "et", 4)
