"""Traces made by hand for tests: the operations of each rank as short tuples, as a `Trace` or as dumps of the Flight Recorder."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collbench.plugins.traces.model import DTYPE, KIND, NONE, REDOP, UNKNOWN, ProcessGroup, RankTrace, Trace, empty

MS = 1_000_000  # ns


@dataclass(frozen=True)
class Op:
    """An operation at a rank; as in OPERATION, with names. start_ms and end_ms: None for not recorded. after the kind: group, elements."""

    kind: str
    group: str = "world"
    sent: int = UNKNOWN
    received: int | None = None
    start_ms: float | None = None
    end_ms: float | None = None
    dtype: str | None = "float32"
    redop: str | None = "sum"
    root: int = UNKNOWN
    queue: int = UNKNOWN
    batch: int = UNKNOWN
    splits: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def trace_of(groups, ranks, *, world=None, steps=None, compute_ms=None):
    """Return the trace of a job; `ranks` has the operations of those with a trace."""
    known = tuple(ProcessGroup(name, tuple(each)) for name, each in groups.items())
    names = list(groups)
    found = []
    world = world or max(max(each) for each in groups.values()) + 1
    for rank, operations in sorted(ranks.items()):
        rows, splits = empty(len(operations)), list[tuple[tuple[int, ...], tuple[int, ...]]]()
        for row, op in zip(rows, operations, strict=True):
            row["kind"], row["group"], row["sent"] = KIND[op.kind], names.index(op.group), op.sent
            row["received"] = op.sent if op.received is None else op.received
            row["dtype"] = NONE if op.dtype is None else DTYPE[op.dtype]
            row["redop"] = REDOP[op.redop] if op.redop and op.kind in ("allreduce", "reduce", "reducescatter") else NONE
            row["root"], row["queue"], row["batch"] = op.root, op.queue, op.batch
            row["start"] = UNKNOWN if op.start_ms is None else round(op.start_ms * MS)
            row["end"] = UNKNOWN if op.end_ms is None else round(op.end_ms * MS)
            if op.splits is not None:
                row["splits"] = len(splits)
                splits.append(op.splits)
        computing = np.array([(a * MS, b * MS) for a, b in (compute_ms or {}).get(rank, ())], np.int64).reshape(-1, 2)
        bounds = np.array((steps or {}).get(rank, ()), np.int64)
        found.append(RankTrace(rank, world, Path(f"rank{rank}"), known, rows, splits, computing, bounds))
    return Trace("flight-recorder", world, known, tuple(found))


_NAMES = {
    "allreduce": "all_reduce", "allgather": "_all_gather_base", "reducescatter": "_reduce_scatter_base", "alltoall": "all_to_all",
    "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter", "barrier": "all_reduce_barrier",
}  # fmt: skip
_TYPES = {"float32": "Float", "float64": "Double", "bfloat16": "BFloat16", "int32": "Int", "uint8": "Byte", "float16": "Half"}


def write_dumps(folder, groups, ranks):
    """Write a dump of the Flight Recorder for each rank, as PyTorch does with NCCL. Return the folder."""
    folder.mkdir(exist_ok=True)
    config = {name: {"name": name, "desc": name, "ranks": json.dumps(list(each))} for name, each in groups.items()}
    for rank, operations in ranks.items():
        numbers = {}
        entries = []
        for place, op in enumerate(operations):
            message = op.kind in ("send", "recv")
            number = numbers[op.group, message] = numbers.get((op.group, message), 0) + 1
            own, peer = list(groups[op.group]).index(rank), op.root
            arrow = {"send": f"send {own}->{peer}", "recv": f"recv {own}<-{peer}"}
            received = op.sent if op.received is None else op.received
            entries.append({
                "record_id": place, "pg_id": list(groups).index(op.group), "process_group": [op.group, op.group],
                "collective_seq_id": 0 if message else number, "p2p_seq_id": number if message else 0, "op_id": place,
                "profiling_name": f"nccl:{arrow.get(op.kind) or _NAMES[op.kind]}", "is_p2p": message, "state": "completed", "retired": True,
                "input_sizes": [[op.sent]], "output_sizes": [[received]],
                "input_dtypes": [_TYPES[op.dtype or "float32"]], "output_dtypes": [_TYPES[op.dtype or "float32"]],
                "time_created_ns": round((op.start_ms or 0) * MS) + 1,
                "time_discovered_started_ns": None if op.start_ms is None else round(op.start_ms * MS) + 1,
                "time_discovered_completed_ns": None if op.end_ms is None else round(op.end_ms * MS) + 1, "frames": [],
            })  # fmt: skip
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        (folder / f"dump_rank_{rank}.json").write_text(json.dumps(dump), encoding="utf-8")
    return folder


def operations_of(step, world, each_ms=1.0):
    """Return (the process groups, by rank the operations) that a job with these exchanges, one after the other, would record."""
    from collbench.operations.dtypes import dtype_named

    names = {tuple(range(world)): "world"}
    found = {rank: [] for rank in range(world)}
    clock = 0.0
    for exchange in _single(step):
        width = dtype_named(exchange.dtype).size
        count = exchange.size_bytes // width
        for group in exchange.groups:
            name = names.setdefault(group, f"group{len(names)}")
            part = count // len(group)
            sent = {"allgather": part, "gather": part}.get(exchange.operation, count)
            received = {"reducescatter": part, "scatter": part}.get(exchange.operation, count)
            for rank in group:
                root = UNKNOWN if exchange.root is None else group[exchange.root]
                found[rank].append(
                    Op(exchange.operation, name, sent, received, clock, clock + each_ms, exchange.dtype, exchange.redop, root)
                )
        clock += each_ms
    return {name: group for group, name in names.items()}, found


def _single(step):
    return (exchange for exchange in step.exchanges for _ in range(exchange.times))
