"""Output of `--dry-run`: the cases or rounds that would be measured, and the estimated time."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, TextIO

from collbench.errors import UsageError
from collbench.operations.case import Case
from collbench.report.frame import Column, Frame, Line, csv_of, printable, table_lines
from collbench.report.plan import operation_name
from collbench.report.screen import print_lines, width_of, write_line
from collbench.units import format_duration, format_size, plural

# For an estimate of what is added to the samples: seconds of start-up and of the references before the first case, seconds of set-up and
# verification of a case, and how often the bytes of a case pass memory, with bytes per second of a slow machine.
_START_S = 8.0
_REFERENCES_S = 3.0
_OVERHEAD_S = 0.5
_OVERHEAD_PASSES = 10
_MEMORY_RATE = 4e9
MEASUREMENTS = 3  # of each round of pairs: the latency, then the bandwidth each way
_AS_TEXT = ("dtype", "split", "traffic")  # fields of a case that are objects; rows print their text


class PlannedWork(ABC):
    """What --dry-run of a command prints."""

    @abstractmethod
    def write(self, format: str, out: TextIO, talk: TextIO | None) -> None:
        """Print a table with the time below it, or each record as JSON or CSV, with the time on `talk` (None: nowhere).

        Raises UsageError for a format that plans do not have.
        """


@dataclass(frozen=True)
class Planned(PlannedWork):
    """The cases that would be measured.

    title       of the suite
    ranks       number of processes
    cases       (the sweep's name or place, the case), in the order of the suite
    done        how many of the suite's cases the resumed run already has; `cases` are the missing ones
    max_time_s  per case
    total_s     of all cases of a launch together; None: no such limit
    wall_s      of the whole command, with start-up and references; None: no such limit
    launches    starts of all ranks
    known_s     seconds that a case took in the resumed run, None if unknown
    known_from  the folder of that run
    notes       further remarks for the user
    """

    title: str
    ranks: int
    cases: Sequence[tuple[str, Case]]
    max_time_s: float
    launches: int = 1
    done: int = 0
    known_s: float | None = None
    known_from: str = ""
    notes: Sequence[str] = field(default=())
    total_s: float | None = None
    wall_s: float | None = None

    @property
    def whole_s(self) -> float:
        """Return the estimated time of the command in seconds, with start-up, references, set-up and verification."""
        if self.wall_s is not None:
            return self.launches * self.wall_s
        has_references = any(case.device == "cpu" and case.backend != "simulated" for _, case in self.cases)
        references_s = _REFERENCES_S if has_references else 0.0
        overhead_s = sum(_OVERHEAD_S + _OVERHEAD_PASSES * case.size_bytes / _MEMORY_RATE for _, case in self.cases)
        return self.at_most_s + self.launches * (_START_S + references_s + overhead_s)

    @property
    def at_most_s(self) -> float:
        """Return the time of all samples in seconds, if no case ends before --max-time."""
        launch_s = len(self.cases) * self.max_time_s
        return self.launches * (launch_s if self.total_s is None else min(launch_s, self.total_s))

    def write(self, format: str, out: TextIO, talk: TextIO | None) -> None:
        """Print the sweeps as a table, or each case."""
        if format == "nccl-tests":
            raise UsageError("--dry-run prints a plan, which --format nccl-tests does not support: use table, csv or json")
        if format == "table":
            print_lines((Line(line.text) for line in table_lines(_frame(self), width_of(out))), out)
        else:
            _write_facts([case_facts(label, case) for label, case in self.cases], sentences(self), format, out, talk)


def _write_facts(facts: Sequence[Mapping[str, Any]], remarks: Iterable[str], format: str, out: TextIO, talk: TextIO | None) -> None:
    """Print an object or a CSV line for each record, and the remarks on `talk`."""
    texts = [{name: _text(value) if isinstance(value, bool | list) else value for name, value in record.items()} for record in facts]
    print_lines(csv_of(texts) if format == "csv" else [Line(json.dumps(record)) for record in facts], out)
    if talk:
        for remark in remarks:
            write_line(talk, printable(remark))


def _text(value: Any) -> str:
    """Return a value as text; of pairs: "0-1 2-3"."""
    return " ".join(f"{a}-{b}" for a, b in value) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class PlannedRounds(PlannedWork):
    """The plan of a pairs run or a hunt.

    title    "pairs of 8 ranks"
    parts    the rounds with their pairs, or the stages with their most rounds: records of equal fields
    rounds   of all parts; each has three measurements, which take max_time_s at most
    """

    title: str
    parts: Sequence[Mapping[str, Any]]
    rounds: int
    max_time_s: float
    notes: Sequence[str] = ()

    def sentences(self) -> Iterator[str]:
        """Yield the number of rounds, the estimated time, and the notes."""
        yield self.title
        if self.rounds:
            longest = format_duration(ceil(self.rounds * MEASUREMENTS * self.max_time_s))
            yield (
                f"at most {longest} of samples: {plural(self.rounds, 'round')} × {MEASUREMENTS} measurements × {self.max_time_s:g} s of "
                "--max-time; start-up and verification come on top"
            )
        yield from self.notes

    def write(self, format: str, out: TextIO, talk: TextIO | None) -> None:
        """Print the parts as a table, or each of them."""
        if format != "table":
            _write_facts(self.parts, self.sentences(), format, out, talk)
            return

        def column(name: str) -> Column[Mapping[str, Any]]:
            right = all(isinstance(part[name], int) for part in self.parts)
            return Column("", name.replace("_", " "), lambda part: _text(part[name]), right=right, cut=not right)

        names = list(self.parts[0]) if self.parts else []
        frame = Frame(tuple(map(column, names)), list(self.parts), foot=_below(self.parts, self.sentences()))
        print_lines((Line(line.text) for line in table_lines(frame, width_of(out))), out)


def sentences(planned: Planned) -> Iterator[str]:
    """Yield the number of cases, the estimated time with its source, and the notes."""
    cases = len(planned.cases)
    kept = f"; {planned.known_from} has {planned.done} more" if planned.known_from else ""
    yield f"{planned.title}: {plural(cases, 'case')} on {plural(planned.ranks, 'rank')}{kept}"
    if cases:
        starts = f" × {planned.launches} launches" if planned.launches > 1 else ""
        if planned.known_s is not None:
            likely = format_duration(ceil(planned.known_s * cases * planned.launches))
            yield f"about {likely}, if a case takes {planned.known_s:.3g} s as in {planned.known_from}, including start-up"
        limit = f" × {planned.max_time_s:g} s of --max-time"
        if planned.total_s is not None:
            limit = f" share {planned.total_s:g} s of --total-time, and each takes at most {planned.max_time_s:g} s"
        whole = ""
        if planned.known_s is None:
            whole = f"about {format_duration(ceil(planned.whole_s))} in all, with start-up, references and verification; "
        yield (
            f"at most {format_duration(ceil(planned.at_most_s))} of samples: {plural(cases, 'case')}{starts}{limit}; {whole}"
            "cases that a backend cannot measure take no time"
        )
    yield from planned.notes


def case_facts(label: str, case: Case) -> dict[str, Any]:
    """Return a case as one flat object, with the names that rows have."""
    facts = {name: getattr(case, name) for name in Case.__struct_fields__ if name not in ("flags", "seed")}
    for name in _AS_TEXT:
        if facts[name]:
            facts[name] = getattr(facts[name], "name", None) or str(facts[name])
    return {"sweep": label, **facts, "flags": case.flags}


def _frame(planned: Planned) -> Frame[_Swept]:
    """Return the table of sweeps and backends, with the sentences below; without records if no case is left."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for label, case in planned.cases:
        groups.setdefault((label, case.backend), []).append(case)
    swept = [(label, backend, cases) for (label, backend), cases in groups.items()]
    return Frame(_COLUMNS, swept, foot=_below(swept, sentences(planned)))


def _below(records: Sequence[Any], texts: Iterable[str]) -> list[str]:
    """Return the sentences below a table, after an empty line if it has records."""
    return ["", *texts] if records else list(texts)


def _sizes(cases: Sequence[Case]) -> str:
    """Return the smallest and the largest size; "" for operations that move no data."""
    sizes = [case.size_bytes for case in cases if case.size_bytes]
    if not sizes:
        return "-"
    return " to ".join(dict.fromkeys((format_size(min(sizes)), format_size(max(sizes)))))


_Swept = tuple[str, str, list[Case]]  # the sweep, the backend, its cases
_COLUMNS: tuple[Column[_Swept], ...] = (
    Column("", "sweep", lambda swept: swept[0], cut=True),
    Column("", "backend", lambda swept: swept[1]),
    Column("", "cases", lambda swept: str(len(swept[2])), right=True),
    Column("", "operations", lambda swept: ", ".join(dict.fromkeys(operation_name(case.operation) for case in swept[2])), cut=True),
    Column("", "sizes", lambda swept: _sizes(swept[2])),
)
