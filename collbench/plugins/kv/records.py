"""Results of `collbench kv`: a line per method and layout in kv.jsonl, and the costs per transfer, block and byte that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from collbench.reason import Fact
from collbench.results.estimate import Estimate
from collbench.results.reader import Run, decode_record, read_lines, read_run
from collbench.stats.median import t_quantile
from collbench.units import format_size

FILE = "kv.jsonl"  # in a run's folder


@dataclass(frozen=True)
class KvRow:
    """The time of one transfer of blocks by one method.

    method, backend      of `measure.block_transfer.METHODS`, and the backend that it needs
    pattern, layout      "prefill-decode" or "broadcast"; layout: of the memory, "plain" without a model
    model, tokens, block_tokens, cache_dtype   of the cache; "" and 0 for plain blocks
    sources, targets     ranks that send and that receive
    blocks, block_bytes  blocks of all ranks, after those of a token block are split by layers and heads; busiest: of the busiest rank
    size_bytes           of all blocks
    n, time_s            samples, and the median seconds until the last target has all blocks
    expected_s           seconds that the limiting link needs for its bytes; None inside one host. limited_by: its name and source
    copy_s               for "packed": seconds of the copies of the slowest source and target, in order, measured alone
    prefill_s            the user's time of prefill, or None
    checked, wrong, wrong_detail   as in a row of cases
    """

    method: str
    backend: str
    pattern: str
    layout: str
    sources: int
    targets: int
    blocks: int
    block_bytes: int
    busiest: int
    size_bytes: int
    model: str = ""
    tokens: int = 0
    block_tokens: int = 0
    cache_dtype: str = ""
    nodes: int = 1
    na: str | None = None
    na_fact: dict[str, Any] | None = None
    n: int = 0
    time_s: Estimate = field(default_factory=Estimate)
    expected_s: float | None = None
    limited_by: str = ""
    copy_s: float | None = None
    prefill_s: float | None = None
    checked: int = 0
    wrong: int | None = None
    wrong_detail: str | None = None
    flags: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes_per_s(self) -> float | None:
        """The bytes of all blocks per second."""
        return self.size_bytes / self.time_s.value if self.time_s.value else None

    @property
    def s_per_block(self) -> float | None:
        """Seconds per block of the busiest rank."""
        return self.time_s.value / self.busiest if self.time_s.value is not None else None

    @property
    def percent(self) -> float | None:
        """The rate as a percentage of that of the limiting link; None without one, and where it would mislead."""
        return 100 * self.expected_s / self.time_s.value if self.expected_s and self.time_s.value else None

    @property
    def start_skew_s(self) -> float | None:
        """The median seconds between the first and the last rank of a host to begin; None with one rank per host."""
        skew = self.evidence.get("exit_skew_s")
        value = skew.get("p50") if isinstance(skew, dict) else None
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf") else None

    @property
    def first_token_percent(self) -> float | None:
        """The transfer as a percentage of prefill and transfer one after the other; None without the time of prefill."""
        if self.prefill_s is None or self.time_s.value is None:
            return None
        return 100 * self.time_s.value / (self.prefill_s + self.time_s.value)

    def as_json(self) -> dict[str, Any]:
        """Return the row as values for JSON."""
        return asdict(self)


CASE = "kv"  # the operation of a row's case in cells.jsonl, which `compare`, `gate` and `baseline` use


def series_of(row: KvRow) -> str:
    """Return what identifies the series of a row's case besides its size: "mpi-type prefill-decode 4:2 64KiB blocks, llama-3.1-8b …"."""
    name = f"{row.method} {row.pattern} {row.sources}:{row.targets} blocks of {format_size(row.block_bytes)}"
    return f"{name} {row.model} {row.cache_dtype} {row.block_tokens} tokens {row.layout}" if row.model else name


def kv_from_json(values: dict[str, Any]) -> KvRow:
    """Return the row in `values`, with every field checked; unknown keys are left out. Raises ValueError naming the first misfit."""
    return decode_record(values, KvRow)


def read_kv(run: Run | Path) -> tuple[dict[str, Any], list[KvRow], list[str]]:
    """Return (run.json's "kv", the rows up to the last complete one, what could not be read). Raises UsageError without a run."""
    run = read_run(run) if isinstance(run, Path) else run
    about, warnings = run.info.get("kv"), list[str]()
    rows = list(read_lines(run.path / FILE, kv_from_json, warnings))
    return about if isinstance(about, dict) else {}, rows, warnings


# Costs: time = transfer + blocks × (block + bytes × byte), by least squares of relative errors over the rows of a method.

_PARAMETERS = 3


class CostsInconclusive(Fact, frozen=True):
    """The rows of a method do not determine the costs. why: "grid" (too few numbers or sizes of blocks), "points" (too few rows)."""

    method: str
    why: Literal["grid", "points"]

    def render(self) -> str:
        """Return the sentence that users see."""
        needs = "two numbers and two sizes of blocks" if self.why == "grid" else "at least 4 rows"
        return f"{self.method}: the costs per block and per transfer need {needs}; use e.g. --blocks 8,64,512 --block-bytes 4K,32K"


@dataclass(frozen=True)
class TransferCosts:
    """The costs of a method in seconds: of a transfer, of a block besides its bytes, and of a byte. Each has its 95 % interval."""

    method: str
    transfer_s: Estimate
    block_s: Estimate
    byte_s: Estimate


def is_known(cost: Estimate) -> bool:
    """Return whether a cost is above 0 with confidence."""
    return cost.low is not None and cost.low > 0


def costs_of(rows: Sequence[KvRow]) -> list[TransferCosts | CostsInconclusive]:
    """Return the costs of each method with more than one measured row, or why they are unknown."""
    found: list[TransferCosts | CostsInconclusive] = []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method and row.time_s.value and not row.wrong]
        if len(own) < 2:
            continue
        if len({row.busiest for row in own}) < 2 or len({row.block_bytes for row in own}) < 2:
            found.append(CostsInconclusive(method, "grid"))
        elif len(own) <= _PARAMETERS:
            found.append(CostsInconclusive(method, "points"))
        else:
            found.append(_fit(method, own) or CostsInconclusive(method, "grid"))
    return found


def _fit(method: str, rows: Sequence[KvRow]) -> TransferCosts | None:
    times = np.array([row.time_s.value for row in rows], float)
    blocks, sizes = np.array([row.busiest for row in rows], float), np.array([row.block_bytes for row in rows], float)
    design = np.stack([np.ones_like(blocks), blocks, blocks * sizes], axis=1) / times[:, np.newaxis]
    scale = np.linalg.norm(design, axis=0)
    values, _, rank, _ = np.linalg.lstsq(design / scale, np.ones(len(rows)), rcond=1e-9)
    if rank < _PARAMETERS:
        return None
    freedom = len(rows) - _PARAMETERS
    errors = 1 - design / scale @ values
    known = [(row.time_s.high - row.time_s.low) / 4 / row.time_s.value for row in rows
             if row.time_s.low is not None and row.time_s.high is not None and row.time_s.value]  # fmt: skip
    noise = max(float(errors @ errors) / freedom, float(np.mean(np.square(known))) if known else 0.0)
    deviations = np.sqrt(noise * np.diag(np.linalg.inv((design / scale).T @ (design / scale))))
    reach = t_quantile(0.975, freedom) * deviations / scale
    costs = [Estimate(float(value), float(value - r), float(value + r)) for value, r in zip(values / scale, reach, strict=True)]
    return TransferCosts(method, *costs)
