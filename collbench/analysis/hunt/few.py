"""One, two or three places: nobody can be named, but something can be told."""

from __future__ import annotations

from math import isfinite

import numpy as np

from collbench.analysis.hunt.asks import PAIRS, Ask, Hunt
from collbench.analysis.hunt.book import Book, wrong_data
from collbench.analysis.hunt.verdict import Verdict
from collbench.analysis.pair_effects import doubts
from collbench.operations.groups import circle_round
from collbench.units import format_rate, format_time

LEAST_PLACES = 4
_ALONE = "one place: there is nobody to compare it with; hunt among four or more"


def rounds(n: int) -> int:
    """Every pair once."""
    return n - 1 + n % 2 if n > 1 else 0


def hunt(names: tuple[str, ...]) -> Hunt:
    """The figures of every pair, as notes, and why nobody is named."""
    book = Book(names)
    for number in range(rounds(len(names))):
        yield from book.asking(Ask(PAIRS, circle_round(len(names), number), f"round {number + 1} of {rounds(len(names))}"))
    matrix = book.matrix()
    speeds = matrix.bandwidth[np.isfinite(matrix.bandwidth)]
    why = _ALONE if len(names) < 2 else doubts(matrix)[0]
    wrong = [f"{names[place]}: wrong data in {bad} of {met} pairs" for place, (bad, met) in wrong_data(book).items()]
    middle = float(np.median(speeds)) if len(speeds) else None
    return Verdict(names, (), book.rounds(), rounds(len(names)), (*_figures(book), *wrong), why, middle)


def _figures(book: Book) -> list[str]:
    found = []
    for _, (a, b), figure in book.figures():
        who = f"{book.names[a]} and {book.names[b]}"
        if figure.speed is None:
            found.append(f"{who}: not measured ({figure.na})")
            continue
        back = "" if figure.backward is None else f", {format_rate(figure.backward)} GB/s back"
        latency = "" if figure.latency_s is None or not isfinite(figure.latency_s) else f", {format_time(figure.latency_s)} µs"
        found.append(f"{who}: {format_rate(figure.speed)} GB/s there{back}{latency}")
    return found
