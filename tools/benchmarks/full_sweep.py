"""A made-up full sweep: 4 backends × 10 operations × 28 sizes as a run folder, with all that real rows have. For sizes and times only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

BACKENDS = {"gloo": (40e-6, 6e9), "mpi": (4e-6, 24e9), "nccl": (12e-6, 42e9), "socket": (60e-6, 11e9)}
OPERATIONS = ("allgather", "allreduce", "alltoall", "broadcast", "gather", "hypercube", "reduce", "reducescatter", "scatter", "sendrecv")
SIZES = tuple(1 << power for power in range(3, 31))
RANKS, SAMPLES = 16, 300


def write_sweep(folder, backends=tuple(BACKENDS), operations=OPERATIONS, sizes=SIZES, seed=0):
    """The folder, with run.json, cells.jsonl, samples.bin and events.jsonl; some rows are doubtful, some n/a, one is wrong."""
    folder.mkdir(parents=True)
    drawn, offset = np.random.default_rng(seed), 0
    with (folder / "samples.bin").open("wb") as samples, (folder / "cells.jsonl").open("w") as cases:
        for number, (operation, backend, size) in enumerate(_cases(backends, operations, sizes)):
            row, series = _row(number, operation, backend, size, drawn)
            if series is not None:
                row["samples"], offset = _stored(samples, _arrays(series, drawn), offset)
            cases.write(json.dumps(row) + "\n")
    (folder / "run.json").write_text(json.dumps(_info()))
    (folder / "events.jsonl").write_text("")
    return folder


def _arrays(series: Any, drawn: Any) -> dict[str, Any]:
    """What a run keeps of a case; rank 3 is the slowest of them more often than its share."""
    slowest = drawn.choice([3, *range(RANKS)], SAMPLES)
    ranks = np.median(series) * (1 - 0.01 * drawn.random(RANKS))
    return {"max_s": series, "slowest_rank": slowest.astype("<i4"), "rank_p50_s": ranks, "rank_p95_s": 1.1 * ranks}


def _stored(file: BinaryIO, arrays: dict[str, Any], offset: int) -> tuple[dict[str, Any], int]:
    places = {}
    for name, array in arrays.items():
        places[name] = {"offset": offset, "dtype": array.dtype.str, "shape": list(array.shape)}
        offset += file.write(array.tobytes())
    return places, offset


def _cases(backends: Sequence[str], operations: Sequence[str], sizes: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    yield from ((operation, backend, size) for operation in operations for backend in backends for size in sizes)


def _row(number: int, operation: str, backend: str, size: int, drawn: Any) -> tuple[dict[str, Any], Any]:
    row = {
        "operation": operation, "backend": backend, "api": backend, "device": "cpu", "dtype": "float32",
        "redop": "sum" if operation in ("allreduce", "reduce", "reducescatter") else None,
        "root": 0 if operation in ("broadcast", "gather", "reduce", "scatter") else None, "mode": "isolated", "in_place": False,
        "buffers": "fixed", "group": "all", "window": None, "size_bytes": size, "count": size // 4, "ranks": RANKS, "nodes": 2,
        "target": 0.02, "reached": True, "stopped": "precision",
    }  # fmt: skip
    if backend == "socket" and operation == "hypercube":
        return {**row, "na": "this backend has no hypercube", "flags": []}, None
    series = _samples(number, backend, size, drawn)
    return {**row, **_figures(number, operation, size, series)}, series


def _samples(number: int, backend: str, size: int, drawn: Any) -> Any:
    latency, rate = BACKENDS[backend]
    switched = 1.6 * latency if size >= 1 << 16 else 0.0
    time_s = (latency + switched + size / rate) * np.exp(0.01 * drawn.standard_normal())
    series = time_s * np.exp(0.03 * np.abs(drawn.standard_normal(SAMPLES)))
    return np.where(drawn.random(SAMPLES) < 0.3, 2 * series, series) if number % 41 == 7 else series


def _figures(number: int, operation: str, size: int, series: Any) -> dict[str, Any]:
    low, p50, high, p95, p99 = (float(each) for each in np.quantile(series, (0.47, 0.5, 0.53, 0.95, 0.99)))
    factor = 2 * (RANKS - 1) / RANKS if operation == "allreduce" else (RANKS - 1) / RANKS
    busbw = factor * size / p50
    flags = (["two_modes"] if number % 41 == 7 else []) + (["drift"] if number % 53 == 5 else [])
    return {
        "n": SAMPLES, "n_eff": SAMPLES / 2,
        "time_s": {"p50": p50, "ci_low": low, "ci_high": high, "min": float(series.min()), "p95": p95, "p99": p99,
                   "max": float(series.max())},
        "modes": [{"time_s": p50, "share": 0.7}, {"time_s": 2 * p50, "share": 0.3}] if number % 41 == 7 else [],
        "algbw_bytes_per_s": size / p50, "busbw_bytes_per_s": busbw,
        "ceiling": {"kind": "network", "bytes_per_s": 50e9, "limited_by": "NIC 4×100 Gb/s", "model": "ring", "source": "sysfs"},
        "hard_bound": {"kind": "network", "bytes_per_s": 100e9, "limited_by": "NIC 8×100 Gb/s", "model": "bound", "source": "sysfs"},
        "percent_of_ceiling": 100 * busbw / 50e9, "checked": 1, "wrong": 3 if number == 500 else 0, "flags": flags,
        "evidence": {"exit_skew_s": {"p50": 1e-7, "p95": 2e-7}, "stolen": 0.001, "preempted": 2,
                     "at_s": [number * 0.5, number * 0.5 + 0.4]},
        "canary_s": {"before": 8e-8, "after": 8.1e-8}, "slowest_ranks": {"worst": [[0, 100], [1, 50]], "count": RANKS},
    }  # fmt: skip


def _info() -> dict[str, Any]:
    places = [{"rank": rank, "host": f"node{rank // 8:02}", "local_rank": rank % 8, "pid": 100 + rank} for rank in range(RANKS)]
    return {
        "schema": 1, "id": "00000000", "command": ["collbench", "run", "full"], "collbench": "0.1.0", "started_utc": "2026-11-21T12:00:00Z",
        "finished_utc": "2026-11-21T13:00:00Z", "exit_code": 0, "seed": 0, "launch_index": 0, "allocation_id": None,
        "hosts": ["node00", "node01"], "rank_map": places, "libraries": {}, "environment": {},
    }  # fmt: skip
