"""The time that a model expects of each row's size, with its origin: is this speed expected?

The best model that a run allows is used for all sizes of a series (rows that differ only in size):

1. NCCL's own table in the run's log (NCCL_DEBUG_SUBSYS with TUNING), with the algorithm and protocol that NCCL chose, if the log has them.
2. The constants in NCCL's source for the links of the run's machine (`machine/peak/time_model.py`).
3. The line through the run's own smallest and largest reliable size: latency and rate. If the largest size exceeds the expected rate of
   its links, that rate is taken in place of its own.

An unreliable row has no percentage, and is not the base of a model. The third model proves nothing about the two rows of which it is
made: they have no percentage. It needs three reliable sizes. A size with a time that is more than 1.5 times that of the line, or less
than 1/1.5 of it, by more than its interval explains, is off the line. It keeps its percentage if it is slower and its neighbors are not,
too, while another size between the ends is on the line: then the line holds, and one size is slow. It has no model in all other cases,
which are what a switch of the library's algorithm or a cache does: neighbors that are off in the same direction, a size that is faster,
or no size on the line. If more of the sizes between the ends are off the line than on it, none has a model.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property
from itertools import groupby
from math import isfinite
from typing import Any

from collbench.analysis.latency import line_fits, reason, series_of
from collbench.analysis.launches import grouped, median_of, time_of
from collbench.errors import CollbenchError
from collbench.machine.model import Machine
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.machine.peak.collective import KIND, ceilings
from collbench.machine.peak.job import job_on
from collbench.machine.peak.node import Job
from collbench.machine.peak.time_model import PROTOCOLS, Forced, expected_times, plain_name, time_of_table
from collbench.machine.readers.nccl_facts import TunedRate
from collbench.machine.snapshot import machines_of
from collbench.results.expectation import (
    Expectation,
    FromNcclConstants,
    FromNcclLog,
    FromRunAndReference,
    FromRunSizes,
    LargestOfRun,
    ModelOrigin,
    NotSaturated,
    OffTheLine,
    OutsideOfSizes,
    SmallestOfRun,
    TooFewSizes,
    UnreliableTime,
)
from collbench.results.folder import topology_of
from collbench.results.quality import is_unreliable
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.untrusted import dict_of, list_of

HOLDS_WITHIN = 1.5  # a time that differs from the line by a larger factor is off it
_FEWEST = 3
_OWN_TIME = ("isolated", "batched", "pipelined", "graph")  # modes of which the time is that of the operation alone
_NCCL = ("nccl", "torch-nccl")
# Variables with which the user changes what NCCL selects from: its constants then describe another choice.
_FORCING = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NVLS_ENABLE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS",
            "NCCL_TUNER_PLUGIN", "NCCL_TUNER_CONFIG_FILE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE",
            "NCCL_NET_GDR_LEVEL", "NCCL_MNNVL_ENABLE", "NCCL_COLLNET_ENABLE")  # fmt: skip
_SAME_RATE = 0.02
_MOST_NODES = 100_000
_MOST_ENTRIES = 1024


def with_expectations(rows: Sequence[Row], run: Run) -> list[Row]:
    """Return the rows in their order, each with what a model expects of its size; run: that they are of, for its machine and log.

    Rows without a time of their own have none: n/a, wrong data, one rank, no bytes, and those of other modes (overlap, load).
    """
    nccl = _NcclModels(run)
    expected: dict[int, Expectation] = {}
    for series in grouped(filter(_has_time, rows), series_of).values():
        expectations = nccl.expectations(series) or _by_sizes(series)
        expected |= {id(row): expectation for row, expectation in zip(series, expectations, strict=True)}
    return [row.with_figures(expectation=expected[id(row)]) if id(row) in expected else row for row in rows]


def _has_time(row: Row) -> bool:
    return row.mode in _OWN_TIME and row.ranks > 1 and row.size_bytes > 0 and not row.wrong and time_of(row) is not None


def _compared(row: Row, seconds: float, origin: ModelOrigin, *, reliable: bool) -> Expectation:
    """Return the expectation with the row's percentage, if its time is reliable."""
    if not reliable:
        return Expectation(UnreliableTime(), seconds)
    measured = median_of(row)
    low = None if measured.ci_high is None else 100 * seconds / measured.ci_high
    high = None if measured.ci_low is None else 100 * seconds / measured.ci_low
    return Expectation(origin, seconds, 100 * seconds / measured.value, low, high)


# Series that are not saturated at their largest size, so that percentages of the expected bandwidth are low.

_BY_PARTS = ("allreduce", "allgather", "reducescatter", "alltoall")  # each rank has a part of the size
_SATURATED = 0.95  # of the rate that larger messages approach
_HEALTHY_PERCENT = 78.0  # of the expected bandwidth: the least that published healthy machines reach at their largest sizes


def not_saturated(rows: Sequence[Row]) -> list[NotSaturated]:
    """Return the series whose largest size reaches neither the healthy part of the expected bandwidth, nor what larger sizes approach."""
    unsaturated: list[NotSaturated] = []
    for fit in line_fits(rows):
        row = fit.row
        expected = row.ceiling.bytes_per_s if row.ceiling else None
        if row.operation not in _BY_PARTS or fit.percent is None or not expected or not row.busbw_bytes_per_s or row.wrong:
            continue
        is_low = row.comparison is None or row.comparison.percent < _HEALTHY_PERCENT
        if is_low and isfinite(fit.busbw.high) and row.busbw_bytes_per_s < _SATURATED * fit.busbw.value:
            rates = (row.busbw_bytes_per_s, fit.busbw.value, expected)
            unsaturated.append(NotSaturated(row.operation, row.backend, row.size_bytes, row.ranks, *rates))
    return unsaturated


# The line through the smallest and the largest reliable size of a series.


def _by_sizes(series: Sequence[Row]) -> list[Expectation]:
    """Return the expectation of each row of a series by its own sizes."""
    bases = sorted((row for row in series if is_reliable(row)), key=lambda row: row.size_bytes)
    sizes = {row.size_bytes for row in bases}
    if len(sizes) < _FEWEST:
        return [Expectation(TooFewSizes(sizes=len(sizes)))] * len(series)
    line = _RunLine(bases[0], bases[-1])
    reliable = {id(row) for row in bases}
    between = [row for row in series if line.first.size_bytes < row.size_bytes < line.last.size_bytes]
    stretches = _off_the_line(sorted(between, key=lambda row: row.size_bytes), line, reliable)
    return [_on_line(row, line, stretches, reliable=id(row) in reliable) for row in series]


def is_reliable(row: Row) -> bool:
    """Return whether the row's time can be the base of a model."""
    return reason(row) is None and not is_unreliable(row)


class _RunLine:
    """The line through the times of two rows; its rate is the reference of the last row if that row exceeds it."""

    def __init__(self, first: Row, last: Row) -> None:
        self.first = first
        self.last = last
        self._first_s = _seconds(first)
        last_s = _seconds(last)
        self._s_per_byte = max(0.0, (last_s - self._first_s) / (last.size_bytes - first.size_bytes))
        reference = _s_per_byte_of_links(last)
        self.exceeds_reference = reference is not None and reference * last.size_bytes > last_s * TOLERANCE
        if reference is not None and self.exceeds_reference:
            self._s_per_byte = reference

    def seconds(self, size_bytes: int) -> float:
        """Return the time of a size."""
        return self._first_s + (size_bytes - self.first.size_bytes) * self._s_per_byte

    @property
    def origin(self) -> ModelOrigin:
        """Return what the line is made of."""
        ceiling = self.last.ceiling
        if self.exceeds_reference and ceiling is not None:
            return FromRunAndReference(smallest=self.first.size_bytes, limited_by=ceiling.limited_by)
        return FromRunSizes(smallest=self.first.size_bytes, largest=self.last.size_bytes)


def _seconds(row: Row) -> float:
    return median_of(row).value


def _s_per_byte_of_links(row: Row) -> float | None:
    """Return the seconds per byte of the row's size at the expected rate of its links; None without one.

    A measured reference, such as a memory copy, is not a limit: libraries exceed it several times where data stays in a cache.
    """
    comparison = row.comparison
    if comparison is None or comparison.ceiling.kind == "measured" or not comparison.busbw_bytes_per_s:
        return None
    return comparison.busbw_bytes_per_s * _seconds(row) / row.size_bytes / comparison.expected_bytes_per_s


_Stretch = tuple[int, int]  # the smallest and the largest size in bytes


def _on_line(row: Row, line: _RunLine, stretches: Sequence[_Stretch], *, reliable: bool) -> Expectation:
    if not line.first.size_bytes <= row.size_bytes <= line.last.size_bytes:
        return Expectation(OutsideOfSizes(smallest=line.first.size_bytes, largest=line.last.size_bytes))
    seconds = line.seconds(row.size_bytes)
    for first, last in stretches:
        if first <= row.size_bytes <= last:
            return Expectation(OffTheLine(first=first, last=last, factor=_seconds(row) / seconds))
    if row is line.first:
        return Expectation(SmallestOfRun(), seconds)
    if row is line.last and not line.exceeds_reference:
        return Expectation(LargestOfRun(), seconds)
    return _compared(row, seconds, line.origin, reliable=reliable)


def _off_the_line(middle: Sequence[Row], line: _RunLine, reliable: Set[int]) -> list[_Stretch]:
    """Return the sizes without a model, by the rule in the docstring of this module.

    middle: the rows between both ends, ascending; reliable: the ids of those with a reliable time

    An unreliable row that is off the line supports a neighbor that is off, but none that is on it proves that the line holds.
    """
    directions = [_direction_off(row, line) for row in middle]
    number_on = sum(direction == 0 and id(row) in reliable for direction, row in zip(directions, middle, strict=True))
    number_off = sum(direction != 0 for direction in directions)
    if number_off > number_on:
        return [(middle[0].size_bytes, middle[-1].size_bytes)]
    stretches: list[_Stretch] = []
    for direction, places in groupby(range(len(middle)), key=directions.__getitem__):
        sizes = [middle[place].size_bytes for place in places]
        if direction < 0 or (direction > 0 and len(sizes) > 1):
            stretches.append((sizes[0], sizes[-1]))
    return stretches


def _direction_off(row: Row, line: _RunLine) -> int:
    """Return 1 if the row is off the line and slower, -1 if it is faster, 0 if it is on it, all by more than its interval explains."""
    measured = median_of(row)
    expected = line.seconds(row.size_bytes)
    if (measured.ci_low or measured.value) > HOLDS_WITHIN * expected:
        return 1
    return -1 if (measured.ci_high or measured.value) < expected / HOLDS_WITHIN else 0


# NCCL's own models: the table in the run's log, and its constants for the machine of the run.


class _NcclModels:
    """NCCL's models of a run, each read when a series needs it."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def expectations(self, series: Sequence[Row]) -> list[Expectation] | None:
        """Return the expectation of each row; None if NCCL has no model of the series."""
        first = series[0]
        if first.backend not in _NCCL or first.group != "all" or first.call is not None:
            return None
        return self._by_table(series) or self._by_constants(series)

    def _by_table(self, series: Sequence[Row]) -> list[Expectation] | None:
        first = series[0]
        entries = _tuning_of(dict_of(dict_of(self._run.info.get("nccl_log")).get(first.backend)).get("tuning"))
        expectations: list[Expectation] = []
        for row in series if entries else ():
            time = time_of_table(entries, row.operation, row.ranks, row.nodes or 1, row.size_bytes, forced=_chosen(row))
            if time is None:
                return None
            expectations.append(_compared(row, time.seconds, FromNcclLog(choice=time.choice), reliable=is_reliable(row)))
        return expectations or None

    def _by_constants(self, series: Sequence[Row]) -> list[Expectation] | None:
        first = series[0]
        environment = dict_of(self._run.info.get("environment"))
        ceiling = first.ceiling
        if ceiling is None or ceiling.kind != KIND or not ceiling.bytes_per_s or any(environment.get(name) for name in _FORCING):
            return None
        job = self._job(first)
        if job is None:
            return None
        try:
            expected = ceilings(first.operation, job).expected
            rate = expected.bytes_per_s if expected else None
            if rate is None or abs(rate / ceiling.bytes_per_s - 1) > _SAME_RATE:  # of a part of the machine, a thin fabric, SHARP
                return None
            times = expected_times(first.operation, job, [row.size_bytes for row in series], (first.algorithm, first.protocol))
        except CollbenchError:
            return None
        pairs = zip(series, times, strict=True)
        return [_compared(row, time.seconds, FromNcclConstants(choice=time.how), reliable=is_reliable(row)) for row, time in pairs]

    def _job(self, row: Row) -> Job | None:
        """Return the job of a row on the machines of the run; None if they are not known."""
        if not self._machines or not row.nodes or row.nodes > _MOST_NODES or len(self._machines) not in (1, row.nodes):
            return None
        try:
            return job_on(self._machines, row.ranks, row.nodes, row.device)
        except CollbenchError:
            return None

    @cached_property
    def _machines(self) -> Sequence[Machine]:
        try:
            return machines_of(topology_of(self._run.path), "topology.json")
        except CollbenchError:
            return ()


def _tuning_of(stored: Any) -> list[TunedRate]:
    """Return the entries of a stored table; none if it is not valid."""
    entries: list[TunedRate] = []
    for values in list_of(stored, list)[:_MOST_ENTRIES]:
        if len(values) != len(TunedRate._fields) or not all(isinstance(name, str) for name in values[:3]) or values[2] not in PROTOCOLS:
            return []
        if not all(isinstance(figure, int | float) and isfinite(figure) and figure >= 0 for figure in values[3:]):
            return []
        entries.append(TunedRate(*values))
    return entries


def _chosen(row: Row) -> Forced:
    """Return algorithm and protocol as forced, or as NCCL chose them for all calls of the row; None where they are not known."""
    if row.algorithm or row.protocol:
        return row.algorithm, row.protocol
    choices = list_of(dict_of(row.evidence.get("nccl")).get("choices"), dict)
    operation = plain_name(row.operation)
    pairs = {
        (choice.get("algorithm"), choice.get("protocol")) for choice in choices if plain_name(str(choice.get("collective"))) == operation
    }
    if len(pairs) != 1:
        return None, None
    algorithm, protocol = pairs.pop()
    return (algorithm, protocol) if isinstance(algorithm, str) and isinstance(protocol, str) else (None, None)
