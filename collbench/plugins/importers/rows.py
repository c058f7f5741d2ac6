"""collbench's rows from the figures of another tool: a `RowKind` with the common values of a table, then size and time of each row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import ceil, floor, inf, isfinite
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.errors import UsageError, nearest
from collbench.machine.peak.ceiling import TOLERANCE, Ceiling, no_ceiling, percent_of
from collbench.machine.peak.collective import OPERATIONS, ceilings
from collbench.machine.peak.node import Job
from collbench.operations.case import Case
from collbench.operations.dtypes import DTYPES, dtype_named
from collbench.operations.groups import group_name, groups_of
from collbench.operations.operation import Operation
from collbench.operations.registry import operations
from collbench.plugins.importers.importer import Arrays, Contradiction, UserInput
from collbench.plugins.importers.notes import Missing, MissingItem, RankMismatch, RateMismatch, lacks
from collbench.results.row import IMPORTED, Row, Times, stored_operation
from collbench.stats.median import drift, median, modes, quantiles

RowCeilings = tuple[Ceiling | None, Ceiling | None]
JobOf = Callable[[int, int | None, str], Job]  # ranks, nodes, device -> the job; raises UsageError if the machines do not fit


def with_ceilings(rows: Iterable[Row], job_of: JobOf) -> list[Row]:
    """Return the rows with ceiling, hard limit and percentage, or with the reason if there is none."""

    @cache
    def ceilings_of(operation: str, ranks: int, nodes: int | None, device: str, pairs: int) -> RowCeilings:
        return _ceilings(operation, pairs, lambda: job_of(ranks, nodes, device))

    rows_with_ceilings = []
    for row in rows:
        operation = operations().get(row.operation)
        count = row.groups.get("count")
        pairs = 1  # pairs that send at the same time; 1 for collectives, and for ping-pongs, which take turns
        if operation is not None and operation.pair and not operation.self_synchronizing and row.groups.get("ranks") == 2:
            pairs = count if isinstance(count, int) and count > 1 else 1
        ceiling, bound = ceilings_of(row.operation, row.ranks, row.nodes, row.device, pairs)
        # If its rate exceeds the hard limit, it gets a flag and no percentage, as collbench's own rows do.
        above = bool(row.busbw_bytes_per_s and bound and bound.bytes_per_s and row.busbw_bytes_per_s > bound.bytes_per_s * TOLERANCE)
        percent = None if above else percent_of(row.busbw_bytes_per_s, ceiling)
        flags = (*row.flags, "above_bound") if above else row.flags
        rows_with_ceilings.append(replace(row.compared_with(ceiling, bound, percent), flags=flags))
    return rows_with_ceilings


def _ceilings(operation: str, pairs: int, job_of: Callable[[], Job]) -> RowCeilings:
    """Return the ceilings. A row with the average of concurrent pairs is compared with a pair's part of a node's NICs, or of the given
    ceiling; a row of all pairs together (multipair) with the whole.
    """
    registered = operations().get(operation)
    together = registered is not None and registered.aggregate
    name = "p2p" if registered and registered.pair else operation
    if together:
        name = "multipair"
    if name not in OPERATIONS or (registered and registered.is_barrier):
        return no_ceiling(f"no ceiling is known for {operation}"), None
    try:
        job = job_of()
        if together:
            job = replace(job, pairs=pairs)
        elif pairs > 1 and job.ceiling_from_user is not None:
            job = replace(job, ceiling_from_user=job.ceiling_from_user / pairs)
        elif pairs > 1:  # the first half of the ranks sends to the second half, so half of several nodes have senders
            job = replace(job, pairs=ceil(pairs / max(1, job.machines // 2)))
        reachable = ceilings(name, job)
    except UsageError as error:
        return no_ceiling(str(error)), None
    expected = reachable.expected
    if pairs > 1 and not together and expected and expected.kind == "given":
        return replace(expected, limited_by=f"{expected.limited_by} shared by {pairs} pairs"), None
    return expected, reachable.bound if reachable.bound and reachable.bound.bytes_per_s else None


_SHORTEST_S = 1e-12
_LONGEST_S = 1e9
_LARGEST = 2**63
_LONGEST_NAME = 64
MOST_RANKS = 2_000_000
_SHARED = (
    "operation", "backend", "api", "dtype", "ranks", "nodes", "device", "redop", "root", "mode", "in_place", "buffers", "window",
)  # fmt: skip


class Quantiles(msgspec.Struct, frozen=True):
    """The printed quantiles of the samples, in seconds; None if not printed."""

    min: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


NO_SPREAD = Quantiles()


class RowKind(msgspec.Struct, frozen=True, dict=True):
    """The values that all rows of one table share.

    operation   collbench's name, or another one; then there is a bus bandwidth only if it moves as much as the operation `like`
    ranks       all that took part; for pairs twice the number of pairs
    statistic   the statistic of a time, in each row
    verified    whether the tool can compare received with sent data
    evidence    other values for each row, JSON-ready: {"iterations": 20}
    also        further fields of the rows, by their name: {"protocol": "RDMA_Write"}
    """

    operation: str
    backend: str
    api: str
    dtype: str
    ranks: int
    nodes: int | None
    statistic: str
    device: str = "cpu"
    redop: str | None = None
    root: int | None = None
    mode: str = "pipelined"
    in_place: bool = False
    buffers: str = "fixed"
    window: int | None = None
    like: str | None = None
    verified: bool = True
    evidence: Mapping[str, Any] = msgspec.field(default_factory=dict)
    also: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def row(
        self, size_bytes: int, time_s: float, *, line: int | None = None, count: int | None = None, spread: Quantiles = NO_SPREAD,
        wrong: int | None = None, checked: int | None = None, printed: Mapping[str, str] | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> Row:  # fmt: skip
        """Return the row of one size, from this `line` of the file (the first is 1).

        size_bytes is by collbench's definition (max of what a rank sends and receives); bandwidths follow from it and the time, which must
        be one that `is_time` accepts. `count` is the number of elements per call, by default those of the size. `wrong` is a number of
        elements, None if nothing was compared; `checked` the number of compared calls, by default 1 with `wrong`. `printed` has further
        printed figures as texts, and `evidence` further values.
        """
        algbw = size_bytes / time_s if size_bytes else None
        evidence_of_row = {**self.evidence, "statistic": self.statistic}
        if line is not None:
            evidence_of_row["line"] = line
        if printed is not None:
            evidence_of_row["printed"] = {name: parse_number(text) for name, text in printed.items()}
        return self._same.with_figures(
            size_bytes=size_bytes, count=size_bytes // (width_of(self.dtype) or 1) if count is None else count,
            checked=int(wrong is not None) if checked is None else checked, wrong=wrong,
            time_s=Times(time_s, None, None, spread.min, spread.p95, spread.p99, spread.max),
            algbw_bytes_per_s=algbw, busbw_bytes_per_s=algbw * self._factor if algbw and self._factor else None,
            evidence={**evidence_of_row, **(evidence or {})},
        )  # fmt: skip

    def row_if_valid(self, size_bytes: int, time_s: float | None, line: int, **figures: Any) -> Row | None:
        """Return the row as `row` does; None if the size or the time is not valid."""
        if time_s is None or not is_time(time_s) or not is_size(size_bytes):
            return None
        return self.row(size_bytes, time_s, line=line, **figures)

    def without_figures(self, size_bytes: int, count: int, line: int, reason: str) -> Row:
        """Return the row of a case without usable figures."""
        row = self.row(size_bytes, 1.0, count=count, line=line)
        return replace(row, na=reason, time_s=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None)

    @cached_property
    def _factor(self) -> float | None:
        """The factor busbw / algbw."""
        operation = operations().get(self.like or self.operation)
        return operation.bus_factor(2 if operation.pair else self.ranks) if operation else None

    @cached_property
    def _same(self) -> Row:
        same = {name: getattr(self, name) for name in _SHARED} | {"group": _group(self.operation, self.ranks), **self.also}
        flags = (IMPORTED,) if self.verified else (IMPORTED, "unverified")
        return Row(**same, flags=flags, size_bytes=0, count=0)


def is_time(seconds: float) -> bool:
    """Return whether a time is plausible; not NaN, not infinite."""
    return _SHORTEST_S <= seconds <= _LONGEST_S


def is_size(size_bytes: int) -> bool:
    """Return whether a size is plausible for a message with data."""
    return 0 < size_bytes < _LARGEST


def operation_named(name: str) -> Operation:
    """Return the operation of that name. Raises UsageError that names --operation for an unknown one."""
    operation = operations().get(stored_operation(name))
    if operation is None:
        raise UsageError(f"unknown --operation '{short(name)}': {nearest(name, operations())}")
    return operation


class JobExtent(NamedTuple):
    """How many ranks and nodes took part (nodes None: unknown), and the options that contradict the output."""

    ranks: int
    nodes: int | None
    contradicted: tuple[Contradiction, ...] = ()


def ranks_and_nodes(user_input: UserInput, ranks: int | None, nodes: int | None, where: str) -> JobExtent:
    """Return ranks and nodes from the output (None: not contained), else from the user, which never replaces the output's.

    Raises UsageError for unknown ranks, for an impossible number, and for more nodes than ranks; `where` names the table.
    """
    contradicted = contradiction(where, "ranks", user_input.ranks, ranks) + contradiction(where, "nodes", user_input.nodes, nodes)
    ranks = user_input.ranks if ranks is None else ranks
    nodes = user_input.nodes if nodes is None else nodes
    if ranks is None:
        raise UsageError(f"{where}: the number of ranks is unknown: use --ranks N")
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"{where}: {ranks} is not a valid number of ranks; check --ranks and the file")
    if nodes is not None and nodes > ranks:
        raise UsageError(f"{where}: {ranks} ranks cannot be on {nodes} nodes; check --ranks and --nodes")
    return JobExtent(ranks, nodes, contradicted)


def contradiction(where: str, option: str, user_input: int | str | None, printed: int | str | None) -> tuple[Contradiction, ...]:
    """Return the contradiction between the option --`option` and the output, if there is one."""
    if user_input is None or printed is None or user_input == printed:
        return ()
    value = f"{printed} {option}" if isinstance(printed, int) else printed
    return (Contradiction(where, f"--{option}", str(user_input), value),)


def type_name(name: str) -> str:
    """Return collbench's name of a tool's element type; the tool's own name, shortened, if collbench has none."""
    try:
        return dtype_named(name).name
    except UsageError:
        return short(name)


def width_of(dtype: str) -> int | None:
    """Return the bytes per element of a type by collbench's name; None if it has no such type."""
    return DTYPES[dtype].size if dtype in DTYPES else None


def short(text: str) -> str:
    """Return a name from an untrusted file, printable and of limited length."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST_NAME])


@cache
def _group(name: str, ranks: int) -> str:
    operation = operations().get(name)
    if operation is None or not operation.pair:
        return "all"
    case = Case(name, "", DTYPES["uint8"], 0)
    return group_name(operation, case, groups_of(operation, case, max(ranks, 2)))


_LONGEST_DIGITS = 18
_MOST_COUNT = 2**62


def missing(nodes: int | None, hosts: Sequence[str] = ()) -> list[Missing]:
    """Return the values that most of these tools do not print; nodes and hosts only if they are unknown."""
    items = [MissingItem.INTERVAL, MissingItem.SAMPLES, MissingItem.RANK_DATA]
    if not hosts:
        items.append(MissingItem.HOSTS)
    if not nodes:
        items.append(MissingItem.NODES)
    return [*lacks(*items)]


def rank_mismatch(figures: str, fitting: RankRange, ranks: int, operation: str) -> RankMismatch:
    """Return the doubt about a number of ranks that these figures do not fit."""
    return RankMismatch(figures, ranks, operation, fitting.low, fitting.high)


def rank_doubts(figures: str, operation: Operation, rates: Iterable[tuple[str, str]], ranks: int) -> list[RankMismatch]:
    """Return the doubt about a number of ranks that the printed bandwidths (algbw, busbw) of a table do not fit, if there is one.

    figures: their names. The fastest lines have the most digits; more lines do not reduce the range.
    """
    fitting = rank_range(operation, sorted(printed_rates(rates), reverse=True)[:_MOST_RATES])
    return [] if fitting is None or fitting.holds(ranks) else [rank_mismatch(figures, fitting, ranks, operation.name)]


def parse_number(text: str) -> float | None:
    """Return the finite number of at least 0 in a text; None for other text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and value >= 0 else None


def whole(text: str) -> int | None:
    """Return the integer from 0 to below 10**18 in a text; None for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _LONGEST_DIGITS else None


def as_count(value: Any) -> int | None:
    """Return a JSON value that is an integer from 0 to below 2**62; None for another one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_COUNT else None


def groups_of_pairs(pairs: int, row: Row) -> dict[str, Any]:
    """Return `groups` of a row with the average of several pairs: their total bandwidth; empty for one pair."""
    if pairs < 2 or row.busbw_bytes_per_s is None:
        return {}
    total = row.busbw_bytes_per_s * pairs
    return {"count": pairs, "ranks": 2, "p50_s": None, "busbw_bytes_per_s": None, "total_busbw_bytes_per_s": total}


def messages_per_s(size_bytes: int, megabytes_per_s: str, messages: str) -> float | None:
    """Return the messages per second from two printed rates, in 10**6 bytes and in messages: the one with more digits.

    None if neither is a number above 0.
    """
    rates = [(with_digits(messages), 1.0)]
    if size_bytes:
        rates.append((with_digits(megabytes_per_s), 1e6 / size_bytes))
    by_error = [(rate[1] / rate[0], rate[0] * unit) for rate, unit in rates if rate and rate[0] > 0]
    return min(by_error)[1] if by_error else None


def of_all_pairs(row: Row, pairs: int, ways: int) -> Row:
    """Return the row of multipair from that of an average pair: the bandwidths and the message rate are those of all pairs together.

    ways: 2 if messages go both ways; the bandwidth is per direction, and the message rate that of both.
    """
    if row.time_s is None:
        return row
    algbw, busbw = (rate and rate * pairs for rate in (row.algbw_bytes_per_s, row.busbw_bytes_per_s))
    return row.with_figures(
        groups=groups_of_pairs(pairs, row), algbw_bytes_per_s=algbw, busbw_bytes_per_s=busbw, message_rate=pairs * ways / row.time_s.p50
    )


NO_FIGURES = "no line of figures: the test failed, the output was cut, or this test prints none"


class Meaning(msgspec.Struct, frozen=True):
    """A tool's benchmark in collbench's terms.

    operation   collbench's name of the operation; a new name for others
    like        collbench's operation with the same bus factor, or None
    parts       whether the printed size is one rank's part, of which there is one for each rank
    even        whether the ranks' parts could differ, but are equal
    pairs       "one", "many" (the printed number, or half of the ranks), or "" for a collective
    ways        2 if a rate counts both directions
    """

    operation: str
    like: str | None
    parts: bool = False
    even: bool = False
    pairs: Literal["", "one", "many"] = ""
    ways: int = 1

    @property
    def reduces(self) -> bool:
        """Whether elements are summed."""
        return self.like in ("allreduce", "reduce", "reducescatter", "scan", "exscan")

    @property
    def aggregate(self) -> bool:
        """Whether the figures are those of all pairs together, as of multipair."""
        operation = operations().get(self.like or "")
        return operation is not None and operation.aggregate

    @property
    def rooted(self) -> bool:
        """Whether one rank has another part than the others."""
        return self.like in ("broadcast", "reduce", "gather", "scatter", "gatherv", "scatterv")


# By MPI's names, which benchmarks use.
MPI_COLLECTIVES = {
    "allreduce": Meaning("allreduce", "allreduce"),
    "reduce": Meaning("reduce", "reduce"),
    "bcast": Meaning("broadcast", "broadcast"),
    "reduce_scatter": Meaning("reducescatter", "reducescatter", even=True),
    "reduce_scatter_block": Meaning("reducescatter", "reducescatter", parts=True),
    "barrier": Meaning("barrier", "barrier"),
    "allgather": Meaning("allgather", "allgather", parts=True),
    "allgatherv": Meaning("allgatherv", "allgatherv", parts=True, even=True),
    "alltoall": Meaning("alltoall", "alltoall", parts=True),
    "alltoallv": Meaning("alltoallv", "alltoallv", parts=True, even=True),
    "alltoallw": Meaning("alltoallw", "alltoall", parts=True, even=True),
    "gather": Meaning("gather", "gather", parts=True),
    "gatherv": Meaning("gatherv", "gatherv", parts=True, even=True),
    "scatter": Meaning("scatter", "scatter", parts=True),
    "scatterv": Meaning("scatterv", "scatterv", parts=True, even=True),
    "scan": Meaning("scan", "scan"),
    "exscan": Meaning("exscan", "exscan"),
}


# The number of ranks by busbw / algbw: N = 2 / (2 - busbw/algbw) for all-reduce, 1 / (1 - busbw/algbw) for most others.

_MOST_RATES = 16
_MANY = 10**9  # ranks, for the factor's limit
_SLACK = _ROUNDED = 1e-9  # for rounding in the computation


class PrintedRates(NamedTuple):
    """Both bandwidths of one line, each as (value, half a unit of its last digit)."""

    algbw: tuple[float, float]
    busbw: tuple[float, float]


def printed_rates(texts: Iterable[tuple[str, str]]) -> list[PrintedRates]:
    """Return both bandwidths of lines from their texts (algbw, busbw), without lines that lack one, or have no algbw."""
    rates = [(with_digits(algbw), with_digits(busbw)) for algbw, busbw in texts]
    return [PrintedRates(algbw, busbw) for algbw, busbw in rates if algbw and busbw and algbw[0] > 0]


class RankRange(NamedTuple):
    """The numbers of ranks that explain the printed figures, inclusive; high None: no end; low > high: none."""

    low: int
    high: int | None

    @property
    def only(self) -> int | None:
        """The only number of ranks in the range; None if there are several, or none."""
        return self.low if self.low == self.high else None

    def holds(self, ranks: int) -> bool:
        """Return whether this number of ranks explains the figures."""
        return self.low <= ranks and (self.high is None or ranks <= self.high)

    @property
    def empty(self) -> bool:
        """Whether no number of ranks explains the figures."""
        return self.high is not None and self.low > self.high

    def __str__(self) -> str:
        if self.empty:
            return "no number of"
        if self.only is not None:
            return str(self.only)
        return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"


def with_digits(text: str) -> tuple[float, float] | None:
    """Return (value, half a unit of the last digit) of a printed number; None for other text: "235.26" is 235.26 ± 0.005."""
    try:
        value = float(text)
    except ValueError:
        return None
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    scale = int(exponent) if exponent else 0
    return (value, 0.5 * 10.0 ** (scale - digits)) if 0 <= value < inf and abs(scale) < 300 else None


def rank_range(operation: Operation, lines: Iterable[PrintedRates]) -> RankRange | None:
    """Return the numbers of ranks that explain all lines at once; None if the operation's factor or the digits do not show it."""
    limit = round(operation.bus_factor(_MANY))  # 2 for all-reduce, else 1
    ranges = [_factor(line) for line in lines]
    low = max((least for least, _ in ranges), default=0.0)
    high = min((most for _, most in ranges), default=inf)
    if operation.bus_factor(2) == operation.bus_factor(3):  # equal for all numbers of ranks
        return None if low <= limit <= high else RankRange(1, 0)
    if low <= 0 and high >= limit:
        return None
    first = ceil(_ranks(low, limit) * (1 - _SLACK)) if low < limit else _MANY
    return RankRange(max(1, first), floor(_ranks(high, limit) * (1 + _SLACK)) if high < limit * (1 - 1 / _MANY) else None)


def rate_mismatch(size_bytes: int, algbw: str, micros: str, line: int | None = None) -> RateMismatch | None:
    """Return the doubt about a printed algbw in GB/s that is not size / time; None if it is, or the digits do not decide."""
    printed_rate = with_digits(algbw)
    printed_time = with_digits(micros)
    if not printed_rate or not printed_time:
        return None
    rate, rate_half = printed_rate
    time, time_half = printed_time
    if rate <= 0 or time <= time_half:
        return None
    least = size_bytes / (time + time_half) / 1e3
    most = size_bytes / (time - time_half) / 1e3
    if least * (1 - _ROUNDED) - rate_half <= rate <= most * (1 + _ROUNDED) + rate_half:
        return None
    return RateMismatch(algbw, size_bytes, size_bytes / time / 1e3, line)


def _factor(line: PrintedRates) -> tuple[float, float]:
    """Return the smallest and the largest value that busbw / algbw may have had before rounding."""
    (algbw, alg_half), (busbw, bus_half) = line
    least = max(0.0, busbw - bus_half) / (algbw + alg_half)
    return least, (busbw + bus_half) / (algbw - alg_half) if algbw > alg_half else inf


def _ranks(factor: float, limit: int) -> float:
    return limit / (limit - factor)


_WORST = 16
_FEWEST = 6  # with fewer samples a median has no interval
_WHOLE_ARRAYS_UP_TO = 10**6


class Samples(msgspec.Struct, frozen=True):
    """Single times in seconds, per message and in the order of the measurement.

    slowest    of the slowest rank, one per iteration
    per_rank   of each rank, an array of ranks × iterations; None if the tool does not print them
    statistic  the statistic of the row's time
    """

    slowest: NDArray[np.float64]
    statistic: str
    per_rank: NDArray[np.float64] | None = None


def sampled(row: Row, samples: Samples, kind: RowKind) -> tuple[Row, Arrays]:
    """Return the row of `kind` with the median of its samples and its interval, and the arrays for the run folder."""
    series = samples.slowest
    middle = median(series)
    two_modes = modes(series)
    spread = quantiles(series)
    is_constant = spread["min"] == spread["max"]
    low, high = (None, None) if is_constant else (middle.ci_low, middle.ci_high)
    flags = {
        "no_interval": middle.n < _FEWEST,
        "constant": is_constant and middle.n > 1,
        "two_modes": bool(two_modes),
        "drift": drift(series, middle.half_width) is not None,
    }
    arrays: dict[str, NDArray[Any]] = {"max_s": series}
    rank_figures: dict[str, Any] = {}
    per_rank = samples.per_rank
    if per_rank is not None:
        slowest = per_rank.argmax(axis=0)
        counts = Counter(map(int, slowest))
        worst = [[rank, times] for rank, times in counts.most_common(_WORST)]
        rank_figures = {"time_rank_mean_s": float(per_rank.mean()), "slowest_ranks": {"worst": worst, "count": len(counts)}}
        p50, p95 = np.quantile(per_rank, [0.5, 0.95], axis=1)
        arrays |= {"mean_s": per_rank.mean(axis=0), "slowest_rank": slowest.astype(np.int32), "rank_p50_s": p50, "rank_p95_s": p95}
        if per_rank.size <= _WHOLE_ARRAYS_UP_TO:
            arrays["all_s"] = per_rank
    rates = kind.row(row.size_bytes, middle.value, count=row.count)
    row_of_median = row.with_figures(
        time_s=Times(middle.value, low, high, **spread), n=middle.n, n_eff=middle.n_eff,
        modes=[{"time_s": mode.value, "share": mode.share} for mode in two_modes or ()],
        algbw_bytes_per_s=rates.algbw_bytes_per_s, busbw_bytes_per_s=rates.busbw_bytes_per_s,
        flags=(*row.flags, *(flag for flag, applies in flags.items() if applies)),
        evidence={**row.evidence, "statistic": samples.statistic}, **rank_figures,
    )  # fmt: skip
    return row_of_median, arrays
