"""The answer of a run in a few lines: the best rate of each operation over each backend, the quality, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from collbench.analysis.launches import time_of
from collbench.machine.peak.ceiling import ABOVE_LIMIT, LEAST_RATE_BYTES, is_above_limit
from collbench.reason import Fact
from collbench.report.cases import least_percent, two_modes, value_of
from collbench.report.frame import GAP, Line, printable, text_lines
from collbench.results.flags import FLAGS
from collbench.results.quality import UNRELIABLE, is_unreliable, run_quality
from collbench.results.row import IMPORTED, CommunicatorBytes, HeldResources, Row
from collbench.units import format_bytes, format_rate, format_size, format_time, listed, plural

LEAST_PERCENT = 1.0  # a smaller share of the expected bandwidth means nothing for messages up to MOST_LATENCY_BYTES
MOST_LATENCY_BYTES = 65536  # the time of a larger message is bandwidth, not latency
_MOST = 12
_UNTRIED = "not_run_on_hardware"  # of a backend: no line of its results must hide it


class HeadlineRate(Fact, frozen=True):
    """The bus bandwidth of an operation over a backend at a large size, the expected bandwidth, and the resource that limits it.

    left_out: the larger sizes in bytes that were measured, but are unreliable
    """

    bytes_per_s: float
    size_bytes: int
    expected_bytes_per_s: float | None = None
    percent: float | None = None
    limited_by: str = ""
    measured: bool = False
    unreliable: bool = False
    disturbed: bool = False
    left_out: tuple[int, ...] = ()

    @property
    def is_above_limit(self) -> bool:
        """Return whether the rate exceeds a measured reference; the rate of a ring over links may be exceeded."""
        return self.measured and is_above_limit(self.percent)

    def render(self) -> str:
        """Return "5.01 of 7.61 GB/s (66 %) at 64 MiB, limited by memory copy (measured)"."""
        doubt = f", {UNRELIABLE}" if self.unreliable else ""
        where = f"at {format_size(self.size_bytes)}{doubt}"
        larger = f" (larger sizes are unreliable: {', '.join(map(format_size, self.left_out))})" if self.left_out else ""
        if self.expected_bytes_per_s is None or self.percent is None:
            unknown = ", expected rate unknown (its measurement was disturbed)" if self.disturbed else ""
            return f"{format_rate(self.bytes_per_s)} GB/s {where}{unknown}{larger}"
        percent = least_percent(self.percent)
        if self.is_above_limit:
            percent = f"{percent}, {ABOVE_LIMIT}"
        rates = f"{format_rate(self.bytes_per_s)} of {format_rate(self.expected_bytes_per_s)} GB/s ({percent})"
        limit = f", limited by {self.limited_by}{' (measured)' if self.measured else ''}" if self.limited_by else ""
        return f"{rates} {where}{limit}{larger}"


class Latency(Fact, frozen=True):
    """The shortest time of the smallest message, or both values of bimodal samples; without a size, of an operation that moves no data."""

    times_s: tuple[float, ...]
    size_bytes: int = 0

    def render(self) -> str:
        """Return "0.2500 µs at 64 B", "293.5 and 3733 µs (bimodal) at 64 B"."""
        where = f" at {format_size(self.size_bytes)}" if self.size_bytes else ""
        bimodal = " (bimodal)" if len(self.times_s) > 1 else ""
        return f"{listed([format_time(time_s) for time_s in self.times_s])} µs{bimodal}{where}"


class Verification(Fact, frozen=True):
    """In how many of the measured cases the received data was compared with the expected data, and in how many it was wrong.

    files_left_open: of cases that make and free groups, which have no data, the most files of a rank that stayed open; else None.
    imported: whether another tool measured the cases, so that collbench's option -c 0 cannot be the reason.
    without_data: whether the operation moves no data, as a barrier.
    """

    cases: int
    verified: int
    wrong: int = 0
    files_left_open: int | None = None
    imported: bool = False
    without_data: bool = False

    def render(self) -> str:
        """Return "data verified", "not verified (-c 0)" or "WRONG DATA in 2 cases"."""
        if self.wrong:
            return f"WRONG DATA in {plural(self.wrong, 'case')}"
        if self.files_left_open is not None:
            return f"{plural(self.files_left_open, 'file') if self.files_left_open > 0 else 'no file'} left open"
        if self.without_data:
            return "no data to verify"
        if self.verified == self.cases:
            return "data verified"
        if self.verified:
            return f"data verified in {self.verified} of {self.cases} cases"
        return "not verified by the tool" if self.imported else "not verified (-c 0)"


class CommunicatorMemory(Fact, frozen=True):
    """The most GPU memory that a communicator of these rows took, and how that is known."""

    n_bytes: int
    source: str

    def render(self) -> str:
        """Return "a communicator takes 3.00 MiB of a GPU (ncclCommMemStats)"."""
        return f"a communicator takes {format_bytes(self.n_bytes)} of a GPU ({printable(self.source)})"


class Answer(Fact, frozen=True):
    """The result of an operation over a backend: its best rate, its latency, and whether the data was right."""

    operation: str
    backend: str
    how: tuple[str, ...] = ()
    rate: HeadlineRate | None = None
    latency: Latency | None = None
    verification: Verification | None = None
    memory: CommunicatorMemory | None = None
    missing: str = ""

    @property
    def name(self) -> str:
        """Return "allreduce over mpi"."""
        how = f" ({', '.join(self.how)})" if self.how else ""
        return f"{self.operation} over {self.backend}{how}"

    def result(self) -> str:
        """Return the answer without its name."""
        if self.missing:
            wrong = f"{self.verification.render()} · " if self.verification is not None and self.verification.wrong else ""
            return f"{wrong}not measured ({self.missing})"
        return " · ".join(part.render() for part in (self.rate, self.latency, self.verification, self.memory) if part is not None)

    def render(self) -> str:
        """Return "allreduce over mpi: 5.01 of 7.61 GB/s (66 %) at 64 MiB, … · 0.25 µs at 64 B · data verified"."""
        return f"{self.name}: {self.result()}"


def answers(rows: Sequence[Row]) -> list[Answer]:
    """Return an answer for each operation over each backend, and for each further difference that `headlines` keeps apart."""
    from collbench.analysis.best import differing, headlines  # not before the end: numpy would delay the start

    best = headlines(rows)
    names = differing(best)
    apart = ("operation", "backend", *names)
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in apart), []).append(row)
    run_answers: list[Answer] = []
    for key, members in groups.items():
        similar_keys = [group_key for group_key in groups if group_key[:2] == key[:2]]  # of the same operation and backend
        varying = [name for place, name in enumerate(names, start=2) if len({similar_key[place] for similar_key in similar_keys}) > 1]
        run_answers.append(_answer(members, varying))
    return run_answers


def _answer(rows: Sequence[Row], names: Sequence[str]) -> Answer:
    first = rows[0]
    how = tuple(f"{name} {value_of(first, name)}" if name in ("group", "ranks", "nodes") else value_of(first, name) for name in names)
    if any(_UNTRIED in row.flags for row in rows):
        how += (FLAGS[_UNTRIED].name,)
    measured = [row for row in rows if time_of(row) is not None]
    cases = [row for row in rows if time_of(row) is not None or row.wrong]  # wrong data may have ended a case before it had a time
    verification = verification_of(cases)
    if not measured:
        reason = printable(first.na or "no time")
        return Answer(first.operation, first.backend, how, verification=verification if verification.wrong else None, missing=reason)
    best = _rate(measured)
    taken = filter(None, (CommunicatorBytes.of(row.evidence) for row in measured))
    largest = max(taken, key=lambda communicator: (communicator.bytes, communicator.source), default=None)
    return Answer(
        first.operation,
        first.backend,
        how,
        best,
        _latency(measured, MOST_LATENCY_BYTES if best else None),
        verification,
        CommunicatorMemory(largest.bytes, largest.source) if largest else None,
    )


def verification_of(rows: Sequence[Row]) -> Verification:
    """Return in how many of these rows the data was verified, and in how many it was wrong."""
    checked = [row for row in rows if row.wrong is not None]
    imported = any(IMPORTED in row.flags for row in rows)
    without_data = not any(row.size_bytes or row.wrong for row in rows)
    held = filter(None, (HeldResources.of(row.evidence) for row in rows))
    files_left_open = max((resources.open_files for resources in held), default=None)
    return Verification(len(rows), len(checked), sum(bool(row.wrong) for row in checked), files_left_open, imported, without_data)


def _rate(rows: Sequence[Row]) -> HeadlineRate | None:
    """Return the headline among messages for which a bandwidth means something.

    A measured reference inside a host has no percentage below 4 MiB: there memory copy runs in a cache, which no library aims at.
    """
    from collbench.analysis.best import fits_cache, headlines, is_shown_as_time

    large = [row for row in rows if row.size_bytes >= LEAST_RATE_BYTES]
    if not large:
        return None
    headline = headlines(large)[0]
    row = headline.row
    if row.wrong or row.busbw_bytes_per_s is None or is_shown_as_time(row):
        return None
    comparison = row.comparison
    if row.size_bytes <= MOST_LATENCY_BYTES and comparison is not None and comparison.percent < LEAST_PERCENT:
        return None
    unreliable = is_unreliable(row)
    if comparison is None or fits_cache(row):
        disturbed = row.ceiling is not None and row.ceiling.disturbed
        return HeadlineRate(row.busbw_bytes_per_s, row.size_bytes, unreliable=unreliable, disturbed=disturbed, left_out=headline.left_out)
    ceiling = comparison.ceiling
    return HeadlineRate(
        row.busbw_bytes_per_s,
        row.size_bytes,
        comparison.expected_bytes_per_s,
        comparison.percent,
        "" if ceiling.kind == "given" else printable(ceiling.limited_by),
        measured=ceiling.kind == "measured",
        unreliable=unreliable,
        left_out=headline.left_out,
    )


def _latency(rows: Sequence[Row], most_bytes: int | None) -> Latency | None:
    """Return the shortest time of the smallest size with right data; None if that size exceeds `most_bytes`."""
    timed = [(row.size_bytes, time_of(row), place) for place, row in enumerate(rows) if not row.wrong]
    sound = [(size, time_s, place) for size, time_s, place in timed if time_s is not None]
    if not sound:
        return None
    size, time_s, place = min(sound)
    if most_bytes is not None and size > most_bytes:
        return None
    return Latency(tuple(mode_s for mode_s, _ in two_modes(rows[place])) or (time_s,), size)


def answer_lines(rows: Sequence[Row], width: int | None = None, run: str = "", *, quiet: bool = False) -> Iterator[Line]:
    """Yield the answers, and unless `quiet` the quality and the command that shows the `run`; nothing without rows."""
    run_answers = answers(rows)
    if not run_answers:
        return
    shown = run_answers[:_MOST]
    longest = max(len(answer.name) for answer in shown)
    indent = GAP if width is not None and longest > width // 3 else " " * (longest + len(GAP))
    for answer in shown:
        style = "na" if answer.missing else ""
        if answer.verification is not None and answer.verification.wrong:
            style = "wrong"
        yield from text_lines(f"{answer.name.ljust(longest)}{GAP}{answer.result()}", width, style, indent)
    if len(run_answers) > _MOST:
        yield Line(f"and {len(run_answers) - _MOST} more in the table")
    if quiet:
        return
    quality = run_quality(rows)
    if quality.cases:
        yield from text_lines(f"quality: {quality.render()}", width, "" if quality.word == "ok" else "doubtful")
    if run:
        yield Line(printable(f"next: collbench report {shlex.quote(run)} --html report.html"))
