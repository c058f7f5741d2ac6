"""The row: the summary of one case, as stored in cells.jsonl. Names have units; SI floats; None for unknown values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec.structs import replace

from collbench.columns import column, figure
from collbench.machine.peak.ceiling import Ceiling, percent_of
from collbench.plugin import measurement_mode
from collbench.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from collbench.results.expectation import Expectation
else:
    Expectation = object  # a measurement imports no model

SCHEMA = 1
IMPORTED = "imported"  # the flag of rows that another tool measured
UNDER_LOAD = "load"  # the mode of a row whose figure is a factor, not a time


class CaseKey(NamedTuple):
    """The identity of a row's case: the fields that distinguish series, in sorting order, and among them the size in bytes."""

    operation: str
    backend: str
    device: str
    dtype: str
    redop: str | None
    root: int | None
    mode: str
    in_place: bool
    buffers: str
    window: int | None
    group: str
    ranks: int
    nodes: int | None
    registration: str | None
    algorithm: str | None
    protocol: str | None
    traffic: str | None
    streams: int | None
    size_bytes: int
    # Optional fields. Stored forms leave out those at the end that have their default.
    call: str | None = None

    def stored(self) -> tuple[Any, ...]:
        """Return the values as they are stored, in order; `CaseKey(*values)` reads them."""
        count = len(self)
        while count > len(self) - len(self._field_defaults) and self[count - 1] == self._field_defaults[self._fields[count - 1]]:
            count -= 1
        return self[:count]

    def named(self) -> dict[str, Any]:
        """Return the stored values by name; `CaseKey(**values)` reads them."""
        return dict(zip(self._fields, self.stored(), strict=False))


class RateComparison(NamedTuple):
    """A measured bus bandwidth against the expected one. `percent` is 100 at the rate that a healthy system approaches."""

    percent: float
    busbw_bytes_per_s: float
    expected_bytes_per_s: float
    ceiling: Ceiling


def compared_rates(percent: float | None, busbw_bytes_per_s: float | None, ceiling: Ceiling | None) -> RateComparison | None:
    """Return a bus bandwidth against the expected one; None if either is unknown, or without a percentage: it does not apply."""
    if percent is None or busbw_bytes_per_s is None or ceiling is None or not ceiling.bytes_per_s:
        return None
    return RateComparison(percent, busbw_bytes_per_s, ceiling.bytes_per_s, ceiling)


SERIES = tuple(name for name in CaseKey._fields if name != "size_bytes")  # within a series rows differ only in size


def stored_operation(name: str) -> str:
    """Return the name with which rows store an operation: "neighbor_alltoall" for "neighbor-alltoall", as commands and tables spell it."""
    return name.replace("neighbor-", "neighbor_")


class Times(msgspec.Struct, frozen=True):
    """Quantiles of the samples in seconds; a sample is the maximum over ranks of one iteration (or batch), per message.

    In a row of an external tool p50 is the tool's statistic, and values that it does not print are None.
    """

    p50: Annotated[
        float, column("The median time per message of the slowest rank; of an imported row the statistic of its tool.", title="time µs")
    ]
    ci_low: Annotated[float | None, column("The lower end of the 95 % confidence interval of the median.")]
    ci_high: Annotated[float | None, column("The upper end of the 95 % confidence interval of the median.")]
    min: Annotated[float | None, column("The shortest sample.", title="min µs")]
    p95: Annotated[float | None, column("The 95th percentile of the samples.", title="p95 µs")]
    p99: Annotated[float | None, column("The 99th percentile of the samples.", title="p99 µs")]
    max: Annotated[float | None, column("The longest sample.", title="max µs")]


def _overlap_figures(row: Row) -> dict[str, Any]:
    """Return the figures of `Row.overlap` by name; empty without overlap, and without the plug-in that reads it."""
    overlap = measurement_mode("overlap") if row.overlap else None
    return overlap.flat_values(row.overlap) if overlap else {}


# The columns of nested records in CSV, by their keys.
CEILING_COLUMNS = {
    "kind": column("The kind of expected bandwidth: measured, network, topology, given, simulated or none."),
    "bytes_per_s": column("The expected bus bandwidth: what a healthy system approaches.", title="expected GB/s", drop=6),
    "limited_by": column("The link or resource that sets the expected bandwidth; without a rate, the reason.", title="limited by"),
    "model": column("The algorithm of the expected bandwidth: ring, tree, nvls, nvls_tree or direct; or bound."),
    "source": column("The origin of its rate."),
    "low_bytes_per_s": column("The lower end of the interval of a measured reference."),
    "high_bytes_per_s": column("The upper end of the interval of a measured reference."),
    "disturbed": column("Whether the repetitions of a measured reference did not agree; the row then lacks a percentage."),
    "efficiency": column("The share of the links' rate that the algorithm reaches by the library's constants."),
    "constants": column("The origin of this share."),
}
_HARD_BOUND = {
    "kind": column("The kind of hard limit."),
    "bytes_per_s": column("The hard limit: the bus bandwidth that no algorithm can exceed on these links."),
    "limited_by": column("The link or resource that sets the hard limit."),
    "model": column("How the hard limit was computed."),
    "source": column("The origin of the rate of the hard limit."),
}
_GROUPS = {
    "count": column("The number of groups that ran at the same time.", type=int),
    "ranks": column("The number of ranks of each of these groups.", type=int),
    "p50_s": column("The median time of each group."),
    "busbw_bytes_per_s": column("The bus bandwidth of each group; tables: the slowest and the fastest.", title="each group GB/s", drop=5),
    "total_busbw_bytes_per_s": column(
        "The bus bandwidth of all groups together, until the last one is done.", title="all groups GB/s", type=float, drop=4
    ),
}
_OVERLAP = {
    "communication_s": column("`--overlap`: the time of the communication alone.", title="comm µs", type=float),
    "computation_s": column("`--overlap`: the time of the computation alone, of arithmetic on memory.", title="compute µs", type=float),
    "percent": column("100 · (1 − (both − computation) / communication), not limited to 0–100.", title="overlap", type=float),
    "percent_low": column("The lower end of the 95 % confidence interval of `overlap_percent`.", type=float),
    "percent_high": column("The upper end of the 95 % confidence interval of `overlap_percent`.", type=float),
    "exposed_s": column("`--overlap`: the time that the communication adds: both − compute.", title="exposed µs", type=float),
    "exposed_low_s": column("The lower end of the 95 % confidence interval of `overlap_exposed_s`.", type=float),
    "exposed_high_s": column("The upper end of the 95 % confidence interval of `overlap_exposed_s`.", type=float),
    "slowdown": column(
        "`--overlap`: the computation's time during the communication / alone; tables have the difference.",
        title="compute slower",
        type=float,
    ),
    "slowdown_low": column("The lower end of the 95 % confidence interval of `overlap_slowdown`.", type=float),
    "slowdown_high": column("The upper end of the 95 % confidence interval of `overlap_slowdown`.", type=float),
    "assisted_percent": column(
        "The overlap with calls of MPI_Testall every 50 µs of the computation.", title="with test calls", type=float
    ),
    "payer": column("What takes the exposed time: computation, waiting or none.", type=str),
    "progress": column("What moves data while a rank computes: threads or calls of the library.", type=str),
    "blocks": column("The number of blocks of one sample of each state.", type=int),
    "outcome": column("hidden, partial, exposed or inconclusive.", title="outcome", type=str),
}
_STATE_PROBE = {
    "before": column("The time of the state probe, which is fixed work, before the case.", type=float),
    "after": column("The time of the state probe after the case.", type=float),
}
_EXPECTATION = {
    "expected_time_s": column("The time that a model expects of the row's size.", title="expected µs", type=float),
    "percent_of_expected_time": column(
        "The expected time as a share of the measured one: below 100 the row is slower.", title="% of expected time", type=float
    ),
    "percent_of_expected_time_low": column("The lower end of its interval, from the interval of the measured time.", type=float),
    "percent_of_expected_time_high": column("The upper end of its interval.", type=float),
    "expected_time_origin": column("The model of the expected time; or why there is none.", title="expected time from", type=str),
}


class Row(msgspec.Struct, frozen=True):
    """The result of one case. A case that could not be measured has `na` (the reason) and no figures; `na_fact` is the reason as fields.

    size_bytes is nccl-tests' size (max of send and receive per rank), count the elements per API call,
    group the ranks that took part ("all", "0-2,1-3" for pairs at once, or the split: "MOD 8"),
    flags stable words that `collbench explain` explains.
    samples maps the name of an array in samples.bin to {"offset", "dtype", "shape"}.
    stopped is why no more samples were taken: "precision", "out_of_reach" (after half of the time), "max_time", "most_samples"
    or "iterations" (the requested number).
    modes has the two values of bimodal samples, where one number would mislead: {"time_s", "share"} each.
    registration, algorithm and protocol are the case's: the forced setting, None for the library's own choice.
    groups: where several groups ran at the same time {"count", "ranks" (of each), "p50_s", "busbw_bytes_per_s" (by group; null where more
    than 1,024), "total_busbw_bytes_per_s" (of all until the last one ended)}; time, algbw and busbw of the row are then those
    of the slowest group. Else empty.
    overlap: of mode "overlap" the values of `results.overlap.Overlap`: `overlap_of` returns them. Else empty; time is then that of both.
    interference: of mode "load", the victims of `collbench load` while aggressors send: {"factor", "low", "high"} is their median time
    divided by that without aggressors, with its interval, and "why" the reason of an inconclusive row (`LoadInconclusive.why`). Comparisons
    and the gate use the factor of such a row; its time is that under load. Else empty.
    message_rate: of multipair, messages per second of all pairs together, in both directions if both are busy.
    traffic, streams are the case's: the name of an uneven operation's traffic, and TCP connections per pair.
    call is the case's call form: "nonblocking" or "persistent"; None for blocking calls.
    ceiling is the expected rate of the fastest algorithm (else the hard limit), a measured reference or a given rate; hard_bound the
    hard limit. percent_of_ceiling and percent_of_hard_bound are of these two, at every size.
    launches counts the launches behind the figures; above 1 (`combined` rows only) the interval is over their medians.
    expectation is what a model expects of the row's size, of rows that a report shows; it is not stored. `own` is the row with its own
    limits, of rows that a report compares with the higher limits of a baseline; it is not stored either.
    """

    operation: Annotated[
        str, column("What is measured: a collective (allreduce), point-to-point (p2p_latency) or one-sided (put) operation, or a barrier.")
    ]
    backend: Annotated[
        str, column("The library that moves the data, such as nccl, mpi or gloo: `collbench backends` lists those of this machine.")
    ]
    api: Annotated[str, column("The call of the library that the operation uses: `MPI_Allreduce`, `ncclAllReduce`, `allreduce`.")]
    device: Annotated[str, column("Where the buffers are: `cpu` (host memory) or `cuda` (GPU memory).")]
    dtype: Annotated[str, column("The data type of the elements: float32, bfloat16, int8 and others.")]
    redop: Annotated[
        str | None,
        column("The reduction operation: sum, prod, min, max, avg, or the bitwise band, bor, bxor. Empty: the operation does not reduce."),
    ]
    root: Annotated[int | None, column("The rank that has the data before a broadcast or scatter, or after a reduce or gather.")]
    mode: Annotated[str, column("How iterations are timed.")]
    in_place: Annotated[
        bool, column("Whether the result overwrites the input (in place) or has a buffer of its own (out of place).", title="placing")
    ]
    buffers: Annotated[
        str, column("`fixed`: the same each time, small ones stay in the cache. `rotating`: 64 MiB in turn, on GPUs 256 MiB.")
    ]
    group: Annotated[str, column("The ranks that take part: `all`, pairs such as `0-2,1-3`, or the split into groups such as `MOD 8`.")]
    window: Annotated[int | None, column("How many messages of a bandwidth test are in flight at a time.")]
    size_bytes: Annotated[
        int, column("Bytes per rank, as nccl-tests counts them: the larger of what a rank sends and what it receives.", title="size")
    ]
    count: Annotated[int, column("The number of elements per call of the library, as nccl-tests prints it.")]
    ranks: Annotated[int, column("The number of ranks that take part in an operation, in each group.")]
    nodes: Annotated[int | None, column("The number of hosts on which these ranks run.")]
    registration: Annotated[
        str | None, column("How NCCL knows the buffers: `none`, `registered`, in a `window`, in a `symmetric` window.")
    ] = None
    algorithm: Annotated[str | None, column("The algorithm that `--algorithms` selected. Empty: the library's own choice.")] = None
    protocol: Annotated[str | None, column("The protocol that `--protocols` selected: LL, LL128, Simple. Empty: NCCL's own choice.")] = None
    traffic: Annotated[
        str | None,
        column(
            "The sizes of the parts of uneven operations (alltoallv, allgatherv, gatherv, scatterv, reducescatterv): `even`, `skew X`, "
            "or the name of a file."
        ),
    ] = None
    streams: Annotated[int | None, column("The number of TCP connections per pair of ranks.")] = None
    call: Annotated[str | None, column("How an operation is called (`--calls`).")] = None
    na: Annotated[
        str | None, column("Why a case was not measured: the backend, the data type or the number of ranks does not support it.")
    ] = None
    na_fact: dict[str, Any] | None = None
    target: Annotated[float | None, column("The half-width of the confidence interval that was aimed at, as a share of the median.")] = None
    reached: Annotated[bool | None, column("Whether the interval became as narrow as that.")] = None
    stopped: Annotated[str | None, column("Why the sampling stopped: precision, out_of_reach, max_time, most_samples or iterations.")] = (
        None
    )
    n: Annotated[int, column("The number of samples: timed iterations, or batches of them.", title="samples", drop=11)] = 0
    n_eff: Annotated[float | None, column("How many independent samples they are worth.")] = None
    time_s: Annotated[Times | None, column("")] = None
    modes: Annotated[
        list[dict[str, float]],
        column("The two values around which the samples of a bimodal case gather, with the share of each.", title="modes µs"),
    ] = msgspec.field(default_factory=list)
    launches: Annotated[int, column("The launches behind a row. From two on the interval covers their differences.", title="launches")] = 1
    time_rank_mean_s: Annotated[float | None, column("The mean over all ranks and samples.")] = None
    algbw_bytes_per_s: Annotated[
        float | None,
        column("Algorithm bandwidth: size / time. It depends on the number of ranks: compare busbw.", title="algbw GB/s", drop=9),
    ] = None
    busbw_bytes_per_s: Annotated[
        float | None,
        column(
            "Bus bandwidth: algbw times a factor of the operation, so that it can be compared with the speed of a link for any number "
            "of ranks.",
            title="busbw GB/s",
            drop=3,
        ),
    ] = None
    message_rate: Annotated[
        float | None,
        column(
            "Of multipair: messages per second of all pairs, in both directions if both are busy, as osu_mbw_mr counts.",
            title="messages/s",
            drop=3,
        ),
    ] = None
    groups: Annotated[dict[str, Any], column("", parts=_GROUPS)] = msgspec.field(default_factory=dict)
    overlap: Annotated[dict[str, Any], column("", parts=_OVERLAP, value=_overlap_figures)] = msgspec.field(default_factory=dict)
    interference: dict[str, Any] = msgspec.field(default_factory=dict)
    ceiling: Annotated[Ceiling | None, column("", parts=CEILING_COLUMNS)] = None
    hard_bound: Annotated[Ceiling | None, column("", parts=_HARD_BOUND)] = None
    percent_of_ceiling: Annotated[
        float | None, column("The measured bus bandwidth as a share of the expected one.", title="% of expected", drop=2)
    ] = None
    checked: Annotated[int, column("The number of iterations of which the data was verified.")] = 0
    wrong: Annotated[
        int | None, column("The number of wrong elements in these iterations; missing if none was verified.", title="wrong", drop=3)
    ] = None
    wrong_detail: Annotated[str | None, column("The first wrong element, with the expected and the received value.")] = None
    flags: Annotated[
        tuple[str, ...], column("Codes of what makes a row less reliable. `collbench explain FLAG` explains each of them.", title="flags")
    ] = ()
    evidence: Annotated[
        dict[str, Any], column("What was observed while the case ran: counters of NICs and GPUs, CPU time, paths, clocks.")
    ] = msgspec.field(default_factory=dict)
    canary_s: Annotated[dict[str, float | None], column("", parts=_STATE_PROBE)] = msgspec.field(default_factory=dict)
    slowest_ranks: Annotated[dict[str, Any], column("Which ranks were the slowest, and in how many iterations.")] = msgspec.field(
        default_factory=dict
    )
    samples: dict[str, Any] = msgspec.field(default_factory=dict)
    expectation: Annotated[Expectation | None, column("", parts=_EXPECTATION, key="")] = None
    own: Row | None = None

    def __repr__(self) -> str:
        """Return what identifies the case, and its main figures; `vars` has all fields."""
        from collbench.machine.readers.text import printable

        parts = [f"{self.operation} over {self.backend}", format_size(self.size_bytes), f"{self.ranks} ranks"]
        if self.na is not None:
            parts.append(f"n/a: {self.na}")
        if self.time_s is not None and self.time_s.p50 is not None:
            parts.append(f"{format_time(self.time_s.p50)} µs")
        if self.busbw_bytes_per_s is not None:
            parts.append(f"busbw {format_rate(self.busbw_bytes_per_s)} GB/s")
        return printable(f"<Row: {', '.join(parts)}>")

    def as_json(self) -> dict[str, Any]:
        """Return the row as it is stored, as values for JSON. Lists and objects are the row's own: do not change them."""
        values = {name: getattr(self, name) for name in _FIELDS if name != "own"}
        for name in ("call", "message_rate", "overlap", "interference", "expectation"):  # only rows that need them have them
            if not values[name]:
                del values[name]
        if self.time_s is not None:
            values["time_s"] = {name: getattr(self.time_s, name) for name in _TIMES}
        if self.expectation is not None:
            values["expectation"] = self.expectation.as_json()
        if self.ceiling is not None:
            values["ceiling"] = self.ceiling.as_json()
        if self.hard_bound is not None:
            values |= {"hard_bound": self.hard_bound.as_json(), "percent_of_hard_bound": self.percent_of_hard_bound}
        return values

    @property
    def comparison(self) -> RateComparison | None:
        """Return the bus bandwidth against the expected one; None if either is unknown, or if the expected one does not apply."""
        return compared_rates(self.percent_of_ceiling, self.busbw_bytes_per_s, self.ceiling)

    def compared_with(self, ceiling: Ceiling | None, hard_bound: Ceiling | None, percent: float | None) -> Row:
        """Return a copy with these limits; `percent`: of the ceiling, None if it does not apply."""
        return self.with_figures(ceiling=ceiling, hard_bound=hard_bound, percent_of_ceiling=percent)

    @property
    @figure(
        "The measured bus bandwidth as a share of the hard limit.",
        title="% of hard limit", drop=10, after="percent_of_ceiling", optional=True,
    )  # fmt: skip
    def percent_of_hard_bound(self) -> float | None:
        """Return the percentage of the hard limit; None if `percent_of_ceiling` is."""
        return None if self.percent_of_ceiling is None else percent_of(self.busbw_bytes_per_s, self.hard_bound)

    def with_figures(self, **figures: Any) -> Row:
        """Return a copy with these fields replaced."""
        return replace(self, **figures)


FIGURES = ("time_s", "algbw_bytes_per_s", "busbw_bytes_per_s", "percent_of_ceiling")  # that a row without a time does not have
_FIELDS = Row.__struct_fields__
_TIMES = Times.__struct_fields__


# Parts of a row's evidence: each is declared once, and what writes and reads it follows from that. Its other entries are single values.


class EvidencePart(msgspec.Struct, frozen=True):
    """Base of the parts. KEY: its name in the evidence."""

    KEY: ClassVar[str]

    @classmethod
    def of(cls, evidence: Mapping[str, Any]) -> Self | None:
        """Return the part of a row's evidence; None where it is missing or not valid, since stored runs are not trusted."""
        try:
            return msgspec.convert(evidence[cls.KEY], cls)
        except (KeyError, msgspec.ValidationError):
            return None

    def entry(self) -> dict[str, Any]:
        """Return the part by its name, for a row's evidence, JSON-ready."""
        return {self.KEY: msgspec.to_builtins(self)}

    @classmethod
    def entry_of(cls, parts: Sequence[Self] | Mapping[str, Self]) -> dict[str, Any]:
        """Return several parts as one entry, a list or an object, for a row's evidence, JSON-ready; empty without parts."""
        return {cls.KEY: msgspec.to_builtins(parts)} if parts else {}


class StartSkew(EvidencePart, frozen=True, omit_defaults=True):
    """The time between the first and the last rank to leave the synchronization before a sample, in seconds, and the sample's messages."""

    KEY = "exit_skew_s"
    p50: float
    p95: float
    messages: Annotated[int, msgspec.Meta(gt=0, lt=2**31)] = 1


class SharedCores(EvidencePart, frozen=True):
    """How the threads of a host's ranks shared its cores during a case.

    threads   that ran, of all ranks
    cores     that the ranks may use
    others    the share of the cores' time that other processes took
    spread    the 90th percentile of the samples divided by the 10th
    """

    KEY = "threads"
    threads: int
    cores: int
    others: float
    spread: Annotated[float, msgspec.Meta(ge=0, lt=2.0**53)]  # not NaN


class LoopTime(EvidencePart, frozen=True, omit_defaults=True):
    """Seconds in the timed loop, and all other seconds since the previous row was complete, with the time to store it."""

    KEY = "wall_s"
    measured: float
    harness: float | None = None


class HeldResources(EvidencePart, frozen=True):
    """The open files and the resident bytes of a process; in a row's evidence, by how much those of the worst rank grew."""

    KEY = "grown"
    open_files: int
    resident_bytes: int


class CommunicatorBytes(EvidencePart, frozen=True):
    """The GPU memory that a communicator takes, at the worst rank, and how that is known."""

    KEY = "communicator"
    bytes: int
    source: str


class SampleStarts(EvidencePart, frozen=True):
    """The ranks with the begins of their samples (`--trace`), and the messages of a sample."""

    KEY = "sample_starts"
    ranks: list[Annotated[int, msgspec.Meta(ge=0)]]
    messages: int


class WrongData(EvidencePart, frozen=True):
    """How many ranks had wrong data, and the errors of the first ones, each as `prepared_case.DataError.as_json` returns it."""

    KEY = "wrong_data"
    found: int
    first: list[dict[str, Any]]
