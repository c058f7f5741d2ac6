"""Traces of a made-up job as NCCL and PyTorch write them, one file per rank, of any number of operations: for tests of the readers.

The job calls collectives of all ranks, and of the even or the odd ranks. Its operations follow from a seed, the same at all ranks.
"""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast")


@dataclass(frozen=True)
class Call:
    """An operation: NCCL's name, elements of float32, the index of its communicator (0: all ranks), and its number in it."""

    kind: str
    count: int
    communicator: int
    number: int


def calls(operations: int, ranks: int) -> Iterator[Call]:
    """The operations of a rank; with fewer than four ranks, all of them are of all ranks."""
    draw = random.Random(31)
    numbers = [0, 0]
    for _ in range(operations):
        communicator = draw.randrange(2) if ranks >= 4 else 0
        yield Call(draw.choice(_KINDS), 1 << draw.randrange(20), communicator, numbers[communicator])
        numbers[communicator] += 1


def members(communicator: int, rank: int, ranks: int) -> list[int]:
    """The ranks of a rank's communicator."""
    return list(range(ranks)) if communicator == 0 else list(range(rank % 2, ranks, 2))


def inspector(folder: Path, operations: int, ranks: int) -> None:
    """NCCL Inspector's JSONL, as of version 4.0."""
    for rank in range(ranks):
        host, process = f"node{rank // 8:02d}", 4000 + rank
        counted: dict[tuple[int, str], int] = {}
        with (folder / f"{host}-pid{process}.log").open("w") as file:
            for at, call in enumerate(calls(operations, ranks)):
                of = members(call.communicator, rank, ranks)
                counted[call.communicator, call.kind] = number = counted.get((call.communicator, call.kind), -1) + 1
                header = {"id": f"0x7f8c{call.communicator}{of[0]:04x}", "rank": of.index(rank), "n_ranks": len(of), "nnodes": 1}
                metadata = {
                    "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                    "dump_timestamp_us": 1748030377748202 + at, "hostname": host, "pid": process,
                }  # fmt: skip
                performance = {
                    "coll": call.kind, "coll_sn": number, "coll_msg_size_bytes": 4 * call.count, "coll_exec_time_us": 50,
                    "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 277.210914, "coll_busbw_gbs": 485.119099,
                }  # fmt: skip
                file.write(json.dumps({"header": header, "metadata": metadata, "coll_perf": performance}, separators=(",", ":")) + "\n")


def nccl_log(folder: Path, operations: int, ranks: int) -> None:
    """NCCL's log with NCCL_DEBUG_SUBSYS=INIT,COLL, a file per process."""
    for rank in range(ranks):
        host, process = f"node{rank // 8:02d}", 4000 + rank
        begin = f"{host}:{process}:{process} [{rank % 8}] NCCL INFO "
        device = f"cudaDev {rank % 8} nvmlDev {rank % 8} busId {rank % 8}b000"
        with (folder / f"nccl.{host}.{process}").open("w") as file:
            for when in ("START", "COMPLETE"):
                file.write(
                    f"{begin}ncclCommInitRank comm 0x55aa0{rank:04x} rank {rank} nranks {ranks} {device} commId 0xc13f65 - Init {when}\n"
                )
            if ranks >= 4:
                of = members(1, rank, ranks)
                split = f"parent 0x55aa0{rank:04x} childCount 1 color {rank % 2} key {rank}"
                what = f"comm 0x55aa1{rank:04x} rank {of.index(rank)} nranks {len(of)} {device} {split}"
                file.write(f"{begin}ncclCommSplit {what} - Init COMPLETE\n")
            for at, call in enumerate(calls(operations, ranks)):
                size = len(members(call.communicator, rank, ranks))
                file.write(
                    f"{begin}{call.kind}: opCount {at:x} sendbuff 0x7fb201e00400 recvbuff 0x7fb201e80400 count {call.count} datatype 7 "
                    f"op 0 root 0 comm 0x55aa{call.communicator}{rank:04x} [nranks={size}] stream 0x558f83fe3ca0\n"
                )


def _entry(at: int, call: Call, size: int) -> dict[str, object]:
    sent, received = call.count, call.count
    if call.kind == "AllGather":
        received *= size
    elif call.kind == "ReduceScatter":
        sent *= size
    name = {"AllReduce": "all_reduce", "AllGather": "_all_gather_base", "ReduceScatter": "_reduce_scatter_base"}.get(call.kind, "broadcast")
    group = ["0", "default_pg"] if call.communicator == 0 else ["1", "half"]
    begin = 1748030377748202000 + at * 100_000
    return {
        "record_id": at, "pg_id": call.communicator, "process_group": group, "collective_seq_id": call.number + 1, "p2p_seq_id": 0,
        "op_id": at + 1, "profiling_name": f"nccl:{name}", "time_created_ns": begin, "input_sizes": [[sent]], "input_dtypes": ["Float"],
        "output_sizes": [[received]], "output_dtypes": ["Float"], "state": "completed", "time_discovered_started_ns": begin + 10_000,
        "time_discovered_completed_ns": begin + 60_000, "retired": True, "timeout_ms": 600000, "is_p2p": False, "frames": [],
    }  # fmt: skip


def _dump(operations: int, rank: int, ranks: int) -> dict[str, object]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": json.dumps(members(0, rank, ranks))}}
    if ranks >= 4:
        config["1"] = {"name": "1", "desc": "half", "ranks": json.dumps(members(1, rank, ranks))}
    entries = [_entry(at, call, len(members(call.communicator, rank, ranks))) for at, call in enumerate(calls(operations, ranks))]
    return {"version": "2.5", "pg_config": config, "pg_status": {}, "entries": entries}


def flight_recorder_json(folder: Path, operations: int, ranks: int) -> None:
    """Dumps of PyTorch's Flight Recorder as JSON."""
    for rank in range(ranks):
        (folder / f"dump_{rank}").write_text(json.dumps(_dump(operations, rank, ranks), separators=(",", ":")))


def flight_recorder_pickle(folder: Path, operations: int, ranks: int) -> None:
    """Dumps of PyTorch's Flight Recorder as pickle, of up to 1,000 operations: Python writes more in another way than PyTorch."""
    for rank in range(ranks):
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(_dump(operations, rank, ranks), protocol=2))


# Formats by name: the function writes the files of a job of so many ranks into a folder, with so many operations of each rank.
WRITERS: dict[str, Callable[[Path, int, int], None]] = {
    "NCCL Inspector": inspector,
    "NCCL log": nccl_log,
    "Flight Recorder": flight_recorder_json,
}
