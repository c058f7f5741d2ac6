"""What `collbench workload --dry-run` prints: the exchanges of a step and the bytes they move, before anything is started."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TextIO

from collbench.report.flags import defused, printable
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import write_line
from collbench.report.table import Line
from collbench.report.workload_words import aligned, counted, headline, nameless, span, told
from collbench.units import format_bytes
from collbench.workloads.step import Exchange, Regime, Shape, Step, bytes_of, moved_bytes

TITLES = ("part", "operation", "groups", "size", "times", "moves")
_RIGHT = (3, 4, 5)
_MOVES = "moves: what the busiest rank has to send or receive, as busbw counts it; an algorithm may move more"


@dataclass(frozen=True)
class PlannedStep:
    """A regime laid out over the ranks of a launch; model: what the user calls it."""

    regime: Regime
    shape: Shape
    step: Step
    model: str


def write_plan(planned: Sequence[PlannedStep], format: str, out: TextIO) -> None:
    """Prints the plan: table, csv (a record per exchange) or json (an object per exchange)."""
    if format == "table":
        width = width_of(out)
        for number, each in enumerate(planned):
            for line in [*([Line("")] if number else []), *wrapped(map(Line, _table(each)), width)]:
                write_line(out, printable(line.text))
        for line in wrapped([Line(_MOVES)], width) if planned else ():
            write_line(out, line.text)
        return
    facts = [fact for each in planned for fact in exchange_facts(each)]
    if format == "json":
        for fact in facts:
            write_line(out, json.dumps(fact))
        return
    writer = csv.DictWriter(out, list(facts[0]) if facts else [])
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in fact.items()} for fact in facts)
    out.flush()


def exchange_facts(planned: PlannedStep) -> Iterator[dict[str, Any]]:
    """Each exchange of the step as a flat object; moves_bytes: of the rank that moves most, see `workloads.moved`."""
    for exchange in planned.step.exchanges:
        yield {
            "regime": planned.regime.name, "model": planned.model, "what": exchange.what, "operation": exchange.operation,
            "groups": len(exchange.groups), "group_ranks": _ranks(exchange), "size_bytes": exchange.size_bytes, "times": exchange.times,
            "dtype": exchange.dtype, "redop": exchange.redop, "root": exchange.root, "moves_bytes": _moves(exchange),
        }  # fmt: skip


def folded(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Neighbours that differ only in a number of their names as one: "gradients, bucket 1–13 of 14", 13 times."""
    found = []
    for _, those in groupby(exchanges, lambda exchange: replace(exchange, what=nameless(exchange.what))):
        same = list(those)
        found.append(replace(same[0], what=span(same[0].what, same[-1].what), times=sum(exchange.times for exchange in same)))
    return found


def _table(planned: PlannedStep) -> Iterator[str]:
    shape, step = planned.shape, planned.step
    words = [counted(shape.ranks, "rank"), counted(len(set(shape.hosts)), "node")]
    yield headline(planned.regime.name, planned.model, shape.parameters, [shape.dtype, *told(shape.options), *words])
    yield from aligned([TITLES, *map(_cells, folded(step.exchanges))], _RIGHT)
    most, of_all = max(moved := moved_bytes(step, shape.ranks), default=0.0), sum(moved)
    whole = f"the busiest rank moves {format_bytes(most)}, all ranks {format_bytes(of_all)}"
    yield f"a step: {format_bytes(step.payload_bytes)} of a rank's own data; {whole}"
    yield from [step.note] if step.note else []


def _cells(exchange: Exchange) -> tuple[str, ...]:
    groups = f"{len(exchange.groups)} of {counted(_ranks(exchange), 'rank')}"
    return exchange.what, exchange.operation, groups, format_bytes(exchange.size_bytes), str(exchange.times), format_bytes(_moves(exchange))


def _moves(exchange: Exchange) -> float:
    return max(bytes_of(exchange, _ranks(exchange)), default=0.0)


def _ranks(exchange: Exchange) -> int:
    return len(exchange.groups[0]) if exchange.groups else 0


def _cell(value: Any) -> Any:
    return "" if value is None else defused(value) if isinstance(value, str) else value
