"""A matrix of pairs for people (who is slow, in sentences; a line per place; a heatmap) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from collbench.analysis.pairs import PairFinding
from collbench.errors import UsageError
from collbench.report.flags import defused, printable
from collbench.report.pairs_map import heatmap
from collbench.report.pairs_table import place_lines
from collbench.report.pairs_theirs import their_json, their_lines
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, write_line
from collbench.report.table import Line
from collbench.results.rounds import PairMatrix
from collbench.results.row import Row
from collbench.results.store import to_line
from collbench.units import format_size

FORMATS = ("table", "csv", "json")
MOST_SENTENCES = 20
_COLUMNS = (
    "run", "sender", "receiver", "size_bytes", "bandwidth_bytes_per_s", "bandwidth_low_bytes_per_s", "bandwidth_high_bytes_per_s",
    "latency_size_bytes", "latency_s", "wrong",
)  # fmt: skip


def write_pairs(
    matrix: PairMatrix,
    found: Sequence[PairFinding],
    about: Mapping[str, Any],
    format: str,
    out: TextIO,
    *,
    color: bool,
    unsaid: Sequence[str],
    theirs: Sequence[Row] = (),
    run: str = "",
    headed: bool = False,
) -> None:
    """Prints the matrix on `out`.

    about   run.json's "pairs": backend, by, rounds, sampled … (what is not there is not told)
    unsaid  why somebody who is slow is not named: see `doubts`
    theirs  what other tools said of the pairs; CSV leaves it out
    format  table, csv (a record per directed pair with a figure) or json (one object). Raises UsageError for another one.
    run     the name of its folder, in a CSV's first column; headed: whether the CSV has its header already, from another run
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown for pairs: choose from {', '.join(FORMATS)}")
    if format == "table":
        screen, width = PlainScreen(out, out, color), width_of(out)
        beside = wrapped(their_lines(theirs, matrix, str(about.get("backend", "?"))), width)
        for line in [*_said(matrix, found, about, unsaid, width), *_shown(matrix, found, width, color, _blocks(out)), *beside]:
            screen.data(line)
        return
    for text in csv_lines(matrix, run, headed) if format == "csv" else json_parts(matrix, found, about, unsaid, theirs):
        write_line(out, text)


def wrong_data(matrix: PairMatrix) -> list[str]:
    """The pairs between which wrong data arrived, a sentence each; the first ones, and how many there are."""
    senders, receivers = np.nonzero(np.triu(np.nan_to_num(matrix.wrong) > 0))
    those = [
        f"wrong data: {matrix.places[a]} and {matrix.places[b]}: {matrix.wrong[a, b]:.0f} elements are not what was sent"
        for a, b in zip(senders[:MOST_SENTENCES], receivers[:MOST_SENTENCES], strict=True)
    ]
    return [*those, *_more(len(senders) - len(those), "pairs with wrong data")]


def csv_lines(matrix: PairMatrix, run: str = "", headed: bool = False) -> Iterator[str]:
    """A header, unless there is one, and a record for each directed pair of which a figure is known.

    The carriage return stays: RFC 4180 ends records so.
    """
    if not headed:
        yield _record(_COLUMNS)
    known = np.isfinite(matrix.bandwidth) | np.isfinite(matrix.latency_s) | np.isfinite(matrix.wrong)
    for a, b in np.argwhere(known).tolist():
        figures = (matrix.bandwidth, matrix.low, matrix.high)
        ends = [defused(matrix.places[a]), defused(matrix.places[b])]
        rates = [_number(each[a, b]) for each in figures]
        wrong = "" if np.isnan(matrix.wrong[a, b]) else f"{matrix.wrong[a, b]:.0f}"
        sizes = (str(matrix.size_bytes), str(matrix.latency_size_bytes))
        yield _record([defused(run), *ends, sizes[0], *rates, sizes[1], _number(matrix.latency_s[a, b]), wrong])


def json_parts(
    matrix: PairMatrix, found: Sequence[PairFinding], about: Mapping[str, Any], unsaid: Sequence[str], theirs: Sequence[Row] = ()
) -> Iterator[str]:
    """One object in lines: what was measured, findings with their sentences, doubts, and the matrices row by row (null: unknown).

    theirs: what other tools said, as rows; without any the object has no such key.
    """
    head = {
        "schema": 1,
        "places": matrix.places,
        "size_bytes": matrix.size_bytes,
        "latency_size_bytes": matrix.latency_size_bytes,
        "about": {name: value for name, value in about.items() if name != "places"},
        "findings": [finding_json(each, matrix.places) for each in found],
        "doubts": unsaid,
        **({"theirs": their_json(theirs)} if theirs else {}),
    }
    yield to_line(head).removesuffix("}") + ","
    parts = {
        "bandwidth_bytes_per_s": matrix.bandwidth,
        "bandwidth_low_bytes_per_s": matrix.low,
        "bandwidth_high_bytes_per_s": matrix.high,
        "latency_s": matrix.latency_s,
        "wrong": matrix.wrong,
    }
    for number, (name, figures) in enumerate(parts.items()):
        rows = [to_line({"": row}).removeprefix('{"":').removesuffix("}") for row in figures]
        yield f'"{name}":[' + ",\n".join(rows) + ("]," if number < len(parts) - 1 else "]}")


def finding_json(found: PairFinding, names: Sequence[str]) -> dict[str, Any]:
    """A finding's fields and its sentence; places are numbers of the list of places."""
    return {
        "kind": found.kind, "quantity": found.quantity, "places": found.places, "ratio": found.ratio, "cells": found.cells,
        "of_cells": found.of_cells, "both_ways": found.both_ways, "where": found.where, "latency_ratio": found.latency,
        "untold": found.untold, "sentence": found.sentence(names),
    }  # fmt: skip


def _said(
    matrix: PairMatrix, found: Sequence[PairFinding], about: Mapping[str, Any], unsaid: Sequence[str], width: int | None
) -> Iterator[Line]:
    """What was measured, wrong data, findings, doubts."""
    styled = (
        ("head", [measured(matrix, about)]),
        ("wrong", wrong_data(matrix)),
        ("doubtful" if found else "", sentences(matrix, found)),
        ("foot", unsaid),
    )
    return wrapped([Line(printable(text), style) for style, texts in styled for text in texts], width)


def _shown(matrix: PairMatrix, found: Sequence[PairFinding], width: int | None, color: bool, blocks: bool) -> Iterator[Line]:
    """A line per place, and the heatmap."""
    yield Line("")
    yield from place_lines(matrix, found, width)
    yield Line("")
    yield from heatmap(matrix, found, width, color, blocks)


def measured(matrix: PairMatrix, about: Mapping[str, Any]) -> str:
    """What was measured, in one line: "pairs of 8 nodes, over socket, bandwidth of 128 KiB, …, all 56 directed pairs, in 7 rounds"."""
    known = int(np.isfinite(matrix.bandwidth).sum())
    sizes = f"bandwidth of {format_size(matrix.size_bytes)}, latency of {format_size(matrix.latency_size_bytes)}"
    words = [f"pairs of {matrix.n} {about.get('by', 'place')}s", *_word("over {}", about.get("backend")), sizes]
    possible = matrix.n * (matrix.n - 1)
    width = about.get("ranks_per_place")
    words[0] += f" of {width} ranks" if isinstance(width, int) and width > 1 else ""
    words.append(f"{known} of {possible} directed pairs" if known < possible else f"all {possible} directed pairs")
    rounds = "in one round" if about.get("rounds") == 1 else "in {} rounds"
    return ", ".join([*words, *_word(rounds, about.get("rounds")), *_word("{}", about.get("sampled"))])


def _word(pattern: str, value: Any) -> list[str]:
    return [pattern.format(value)] if isinstance(value, str | int) and not isinstance(value, bool) and value else []


def sentences(matrix: PairMatrix, found: Sequence[PairFinding]) -> list[str]:
    """Who is named, a sentence each, of many the first; that nobody stands out, unless there are too few figures to say so."""
    if not found:
        return ["nobody stands out"] if matrix.n > 3 and np.isfinite(matrix.bandwidth).any() else []
    return [*(each.sentence(matrix.places) for each in found[:MOST_SENTENCES]), *_more(len(found) - MOST_SENTENCES, "findings")]


def _more(number: int, what: str) -> list[str]:
    return [f"and {number} more {what}: see --format json"] if number > 0 else []


def _blocks(out: TextIO) -> bool:
    """Whether the stream can show block characters."""
    try:
        "░▒▓█·".encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _number(value: float) -> str:
    return repr(float(value)) if np.isfinite(value) else ""


def _record(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().removesuffix("\n")
