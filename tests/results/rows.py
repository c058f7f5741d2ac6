"""Rows for tests: a typical one, changed where a test needs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collbench.machine.peak.ceiling import Ceiling
from collbench.results.folder import RunFolder
from collbench.results.row import Row, Times

NIC = Ceiling("network", 50e9, "NIC 4×100 Gb/s", "ring", "sysfs")
COPY = Ceiling("measured", 34e9, "memory copy and sum")


def make_row(size_bytes: int = 64 << 20, **changes: Any) -> Row:
    """An all-reduce of float32 on four ranks at 42 of 50 GB/s."""
    values: dict[str, Any] = {
        "operation": "allreduce", "backend": "nccl", "api": "nccl", "device": "cuda", "dtype": "float32", "redop": "sum", "root": None,
        "mode": "isolated", "in_place": False, "buffers": "fixed", "group": "all", "window": None, "size_bytes": size_bytes,
        "count": size_bytes // 4, "ranks": 4, "nodes": 1, "n": 200, "time_s": make_times(2.399e-3), "algbw_bytes_per_s": 28e9,
        "busbw_bytes_per_s": 42e9, "ceiling": NIC, "percent_of_ceiling": 84.0, "checked": 1, "wrong": 0,
    }  # fmt: skip
    return Row(**{**values, **changes})


def make_times(p50: float) -> Times:
    """Quantiles around a median in seconds."""
    return Times(p50, p50 * 0.99, p50 * 1.01, p50 * 0.9, p50 * 1.2, p50 * 1.5, p50 * 2)


def not_measured(reason: str, **changes: Any) -> Row:
    """An n/a row."""
    nothing = {"time_s": None, "algbw_bytes_per_s": None, "busbw_bytes_per_s": None, "ceiling": None, "percent_of_ceiling": None}
    return make_row(**{**nothing, "na": reason, "n": 0, "checked": 0, "wrong": None, **changes})


def store(path: Path, rows: Sequence[Row], **run: Any) -> Path:
    """A finished run's folder with these rows."""
    folder = RunFolder.create(path, "allreduce", run)
    for row in rows:
        folder.append(row, {})
    folder.finish(exit_code=0)
    return path
