"""Runs of interference made from simulated samples of known factors, for tests of what reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.plugins.load import FILE
from collbench.plugins.load.interference import judge, quantiles_of
from collbench.plugins.load.records import LoadRow
from collbench.plugins.load.task import victims_case
from collbench.reason import as_json
from collbench.results.folder import FinishedRun, write_all
from collbench.results.row import Row

VICTIM = operations()["allreduce"]
*_, CASE = Sweep((VICTIM,), (8,), (dtype_named("float32"),), redops=("max",), buffers="fixed").cases("mpi", 2)
PLAN = LoadRow(
    victim="allreduce", backend="mpi", dtype="float32", size_bytes=8, aggressors="incast", message_bytes=4096, level=1.0, nodes=4,
    victims=(0, 2), others=(1, 3), other_nodes=2, checked=1, wrong=0,
)  # fmt: skip


def simulated_row(
    seed: int, factor: float, *, alone_s: float = 1e-5, noise: float = 0.01, blocks: int = 8, crowded: bool = False, plan: LoadRow = PLAN
) -> tuple[LoadRow, list[Row]]:
    random = np.random.default_rng(seed)
    off, on = ([base * np.exp(noise * random.standard_normal(40)) for _ in range(blocks)] for base in (alone_s, alone_s * factor))
    quantiles = quantiles_of(off, on)
    verdict, reason = judge(quantiles, blocks, crowded)
    flags = ("oversubscribed",) if crowded else ()
    row = plan.replace(blocks=blocks, n_off=40 * blocks, n_on=40 * blocks, quantiles=quantiles, verdict=verdict,
                  reason=as_json(reason) if reason else None, flags=flags)  # fmt: skip
    return row, [victims_case(row, VICTIM, CASE, "mpi", np.concatenate(each), on=is_on) for is_on, each in ((False, off), (True, on))]


def load_run(path: Path, *rows: tuple[LoadRow, list[Row]], **info: Any) -> Path:
    about: Mapping[str, Any] = {"load": {"rows": len(rows)}, "hosts": ["n1", "n2", "n3", "n4"], **info}
    write_all([FinishedRun(path, "load", dict(about), [case for _, cases in rows for case in cases])])
    (path / FILE).write_text("".join(f"{json.dumps(row.as_json())}\n" for row, _ in rows))
    return path


def nights(folder: Path, number: int, factor: float = 2.0, *, first: int = 1, alone_s: float = 1e-5) -> list[Path]:
    """Return the runs of nights in November 2026 with this factor, each with scatter of its own."""
    days = range(first, first + number)
    scatter = {day: 1 + 0.004 * np.random.default_rng(1000 + day).standard_normal() for day in days}
    return [
        load_run(
            folder / f"night-{day}", simulated_row(day, factor * scatter[day], alone_s=alone_s), started_utc=f"2026-11-{day:02d}T02:00:00Z"
        )
        for day in days
    ]
