"""Results of `collbench kv`: a line per method and layout in kv.jsonl, and the costs per transfer, block and byte that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import field

from collbench.columns import COUNT, FLAGS, NUMBER, SECONDS, column, figure
from collbench.reason import Fact
from collbench.records import Record
from collbench.results.estimate import Estimate
from collbench.results.row import StartSkew
from collbench.stats.median import t_quantile
from collbench.units import format_size


class KvRow(Record, frozen=True, kw_only=True):
    """The time of one transfer of blocks by one method.

    method and backend are of `block_transfer.METHODS`; blocks counts those of all ranks, after those of a token block are split by layers
    and heads. na_fact is `na` as fields, prefill_s the user's time of prefill; checked, wrong and wrong_detail are as in a row of cases.
    """

    method: Annotated[str, column("How the blocks were moved.", title="method")]
    backend: Annotated[str, column("The backend that the method needs.")]
    pattern: Annotated[str, column("prefill-decode or broadcast.")]
    layout: Annotated[str, column("The memory of the cache: layer-first or block-first; plain without a model.")]
    sources: Annotated[int, column("The ranks that send.")]
    targets: Annotated[int, column("The ranks that receive.")]
    blocks: Annotated[int, column("The blocks of all ranks; of a `--model`, the parts of token blocks.", unit=COUNT, title="blocks")]
    block_bytes: Annotated[int, column("The size of a block.", title="block")]
    busiest: Annotated[int, column("The blocks of the rank that sends or receives most.")]
    size_bytes: Annotated[int, column("The size of all blocks together.")]
    model: Annotated[str, column("The model of the cache.", after="layout")] = ""
    tokens: Annotated[int, column("The tokens of the request; 0 without a model.", after="model")] = 0
    block_tokens: Annotated[int, column("The tokens of a block of the cache; 0 without a model.", after="tokens")] = 0
    cache_dtype: Annotated[str, column("The type of the elements of the cache.", after="block_tokens")] = ""
    nodes: Annotated[int, column("The number of hosts.", after="targets")] = 1
    na: Annotated[str | None, column("Why it was not measured.")] = None
    na_fact: dict[str, Any] | None = None
    n: Annotated[int, column("The number of samples.")] = 0
    time_s: Annotated[
        Estimate,
        column(
            "The median time until the last target has all blocks.",
            title="time µs",
            interval="95 % CI µs",
            drop_interval=4,
        ),
    ] = Estimate()
    expected_s: Annotated[float | None, column("The time that the limiting link needs for its bytes; missing inside one host.")] = None
    limited_by: Annotated[str, column("The limiting link, with the source of its rate.")] = ""
    copy_s: Annotated[float | None, column("Of `packed`: packing and unpacking alone, a part of `time_s`.", title="copies µs", drop=3)] = (
        None
    )
    prefill_s: float | None = None
    checked: Annotated[int, column("The number of transfers of which every byte was verified.")] = 0
    wrong: Annotated[
        int | None, column("The number of wrong bytes in these transfers; missing if none was verified.", unit=NUMBER, title="wrong")
    ] = None
    wrong_detail: Annotated[str | None, column("The first wrong byte.")] = None
    flags: Annotated[tuple[str, ...], column("The flags of the row.", unit=FLAGS, title="flags", wrap=True)] = ()
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    @figure("The bytes of all blocks divided by the median time.", after="time_s", title="GB/s")
    def bytes_per_s(self) -> float | None:
        """The bytes of all blocks per second."""
        return self.size_bytes / self.time_s.value if self.time_s.value else None

    @property
    @figure("The median time divided by `busiest`.", after="bytes_per_s", unit=SECONDS, title="µs per block")
    def s_per_block(self) -> float | None:
        """Seconds per block of the busiest rank."""
        return self.time_s.value / self.busiest if self.time_s.value is not None else None

    @property
    @figure("The rate of the transfer as a share of that of the limiting link.", after="expected_s", title="of link", drop=1)
    def percent_of_link(self) -> float | None:
        """The rate as a percentage of that of the limiting link; None without one, and where it would mislead."""
        return 100 * self.expected_s / self.time_s.value if self.expected_s and self.time_s.value else None

    @property
    @figure(
        "The transfer as a share of `--prefill-time` and the transfer, one after the other.",
        after="copy_s", title="of first token", drop=2,
    )  # fmt: skip
    def first_token_percent(self) -> float | None:
        """The transfer as a percentage of prefill and transfer one after the other; None without the time of prefill."""
        if self.prefill_s is None or self.time_s.value is None:
            return None
        return 100 * self.time_s.value / (self.prefill_s + self.time_s.value)

    @property
    @figure(
        "The median time between the first and the last rank of a host to begin a sample; missing with one rank per host.",
        after="first_token_percent", in_json=False,
    )  # fmt: skip
    def start_skew_s(self) -> float | None:
        """The median seconds between the first and the last rank of a host to begin; None with one rank per host."""
        skew = StartSkew.of(self.evidence)
        return skew.p50 if skew and 0 <= skew.p50 < float("inf") else None


CASE = "kv"  # the operation of a row's case in cells.jsonl, which `compare`, `gate` and `baseline` use


def series_of(row: KvRow) -> str:
    """Return what identifies the series of a row's case besides its size: "mpi-type prefill-decode 4:2 64KiB blocks, llama-3.1-8b …"."""
    name = f"{row.method} {row.pattern} {row.sources}:{row.targets} blocks of {format_size(row.block_bytes)}"
    return f"{name} {row.model} {row.cache_dtype} {row.block_tokens} tokens {row.layout}" if row.model else name


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


class TransferCosts(msgspec.Struct, frozen=True):
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
    costs: list[TransferCosts | CostsInconclusive] = []
    for method in dict.fromkeys(row.method for row in rows):
        measured = [row for row in rows if row.method == method and row.time_s.value and not row.wrong]
        if len(measured) < 2:
            continue
        if len({row.busiest for row in measured}) < 2 or len({row.block_bytes for row in measured}) < 2:
            costs.append(CostsInconclusive(method, "grid"))
        elif len(measured) <= _PARAMETERS:
            costs.append(CostsInconclusive(method, "points"))
        else:
            costs.append(_fit(method, measured) or CostsInconclusive(method, "grid"))
    return costs


def _fit(method: str, rows: Sequence[KvRow]) -> TransferCosts | None:
    times = np.array([row.time_s.value for row in rows], float)
    blocks = np.array([row.busiest for row in rows], float)
    sizes = np.array([row.block_bytes for row in rows], float)
    design = np.stack([np.ones_like(blocks), blocks, blocks * sizes], axis=1) / times[:, np.newaxis]
    scale = np.linalg.norm(design, axis=0)
    values, _, rank, _ = np.linalg.lstsq(design / scale, np.ones(len(rows)), rcond=1e-9)
    if rank < _PARAMETERS:
        return None
    freedom = len(rows) - _PARAMETERS
    errors = 1 - design / scale @ values
    from_intervals = [(row.time_s.high - row.time_s.low) / 4 / row.time_s.value for row in rows
                      if row.time_s.low is not None and row.time_s.high is not None and row.time_s.value]  # fmt: skip
    noise = max(float(errors @ errors) / freedom, float(np.mean(np.square(from_intervals))) if from_intervals else 0.0)
    deviations = np.sqrt(noise * np.diag(np.linalg.inv((design / scale).T @ (design / scale))))
    reach = t_quantile(0.975, freedom) * deviations / scale
    costs = [Estimate(float(value), float(value - half), float(value + half)) for value, half in zip(values / scale, reach, strict=True)]
    return TransferCosts(method, *costs)
