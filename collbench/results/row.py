"""The row: the summary of one case, as stored in cells.jsonl. Names have units; SI floats; None for unknown values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from collbench.machine.peak.ceiling import Ceiling, percent_of
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
        known = len(self)
        while known > len(self) - len(self._field_defaults) and self[known - 1] == self._field_defaults[self._fields[known - 1]]:
            known -= 1
        return self[:known]

    def named(self) -> dict[str, Any]:
        """Return the stored values by name; `CaseKey(**values)` reads them."""
        return dict(zip(self._fields, self.stored(), strict=False))


SERIES = tuple(name for name in CaseKey._fields if name != "size_bytes")  # within a series rows differ only in size


def stored_operation(name: str) -> str:
    """Return the name with which rows store an operation: "neighbor_alltoall" for "neighbor-alltoall", as commands and tables spell it."""
    return name.replace("neighbor-", "neighbor_")


@dataclass(frozen=True)
class Times:
    """Quantiles of the samples in seconds; a sample is the maximum over ranks of one iteration (or batch), per message.

    In a row of an external tool p50 is the tool's statistic, and values that it does not print are None.
    """

    p50: float
    ci_low: float | None
    ci_high: float | None
    min: float | None
    p95: float | None
    p99: float | None
    max: float | None


@dataclass(frozen=True)
class Row:
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
    expectation is what a model expects of the row's size, of rows that a report shows; it is not stored.
    """

    operation: str
    backend: str
    api: str
    device: str
    dtype: str
    redop: str | None
    root: int | None
    mode: str
    in_place: bool
    buffers: str
    group: str
    window: int | None
    size_bytes: int
    count: int
    ranks: int
    nodes: int | None
    registration: str | None = None
    algorithm: str | None = None
    protocol: str | None = None
    traffic: str | None = None
    streams: int | None = None
    call: str | None = None
    na: str | None = None
    na_fact: dict[str, Any] | None = None
    target: float | None = None
    reached: bool | None = None
    stopped: str | None = None
    n: int = 0
    n_eff: float | None = None
    time_s: Times | None = None
    modes: list[dict[str, float]] = field(default_factory=list)
    launches: int = 1
    time_rank_mean_s: float | None = None
    algbw_bytes_per_s: float | None = None
    busbw_bytes_per_s: float | None = None
    message_rate: float | None = None
    groups: dict[str, Any] = field(default_factory=dict)
    overlap: dict[str, Any] = field(default_factory=dict)
    interference: dict[str, Any] = field(default_factory=dict)
    ceiling: Ceiling | None = None
    hard_bound: Ceiling | None = None
    percent_of_ceiling: float | None = None
    checked: int = 0
    wrong: int | None = None
    wrong_detail: str | None = None
    flags: tuple[str, ...] = ()
    evidence: dict[str, Any] = field(default_factory=dict)
    canary_s: dict[str, float | None] = field(default_factory=dict)
    slowest_ranks: dict[str, Any] = field(default_factory=dict)
    samples: dict[str, Any] = field(default_factory=dict)
    expectation: Expectation | None = None

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
        """Return the row as values for JSON, nested dataclasses as objects. Lists and objects are the row's own: do not change them."""
        values = {name: getattr(self, name) for name in _FIELDS}
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
    def percent_of_hard_bound(self) -> float | None:
        """Return the percentage of the hard limit; None if `percent_of_ceiling` is."""
        return None if self.percent_of_ceiling is None else percent_of(self.busbw_bytes_per_s, self.hard_bound)

    def with_figures(self, **figures: Any) -> Row:
        """Return a copy with these fields replaced, faster than `replace` for logs of 100,000 rows."""
        copy = object.__new__(Row)
        vars(copy).update(vars(self), **figures)
        return copy


_FIELDS, _TIMES = (tuple(each.name for each in fields(kind)) for kind in (Row, Times))
