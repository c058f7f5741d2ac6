"""Who is named beside a matrix: a place at its row or its column, once, and a ring around each pair that its two ends do not explain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collbench.analysis.pairs import PairFinding
from collbench.report.flags import printable
from collbench.report.html.groups import Groups
from collbench.report.html.quantity import Quantity
from collbench.units import format_percent

NAME = 20  # letters of a name at most
_WAYS = {"node": "both ways ", "sender": "sends ", "receiver": "receives "}


@dataclass(frozen=True)
class Mark:
    """text   what stands beside the matrix
    at        the row it stands at, or the column where only what is received is slow
    below     whether it is a column
    rows      rows of the picture with an arrow; columns likewise; rings: cells (row, column) with a ring
    """

    text: str
    at: int
    below: bool
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    rings: tuple[tuple[int, int], ...] = ()


def marks(quantity: Quantity, found: Sequence[PairFinding], groups: Groups) -> list[Mark]:
    """The findings of this quantity as marks, the worst first."""
    row_of = groups.rows
    return [_mark(each, ratio, quantity, row_of) for each, ratio in _of(quantity, found)]


def _of(quantity: Quantity, found: Sequence[PairFinding]) -> Iterator[tuple[PairFinding, float]]:
    """The findings of a quantity, and what each reaches in it: a slow latency may be a part of a slow bandwidth."""
    for each in found:
        if each.quantity == quantity.word:
            yield each, each.ratio
        elif each.latency is not None and quantity.symmetric:
            yield each, each.latency


def _mark(found: PairFinding, ratio: float, quantity: Quantity, row_of: dict[int, int]) -> Mark:
    places = [row_of[place] for place in found.places]
    rows = tuple(dict.fromkeys(places))
    reaches = f"{1 / ratio:.2f} times as long" if quantity.symmetric else f"{_WAYS.get(found.kind, '')}{format_percent(100 * ratio)}"
    text = f"{_name(found, quantity)}: {reaches}"
    if found.kind == "pair":
        ends = (places[0], places[1])
        back = ((ends[1], ends[0]),) if found.both_ways or quantity.symmetric else ()
        return Mark(text, rows[0], below=False, rings=(ends, *back))
    if found.kind == "receiver" and not quantity.symmetric:
        return Mark(text, rows[0], below=True, columns=rows)
    return Mark(text, rows[0], below=False, rows=rows, columns=rows if found.kind == "node" else ())


def _name(found: PairFinding, quantity: Quantity) -> str:
    """Each place's name is cut on its own, so that neither of two is lost."""
    names = {place: cut(quantity.matrix.places[place]) for place in found.places}
    if len(found.places) == 1 or found.kind == "pair":
        return found.name([names.get(place, "") for place in range(quantity.matrix.n)])
    return cut(found.name(quantity.matrix.places), 2 * NAME)


def cut(name: str, most: int = NAME) -> str:
    """A name without control characters; of a long one the middle is left out, since names of nodes differ at the end."""
    text = printable(name)
    return text if len(text) <= most else f"{text[: most // 2 - 1]}…{text[len(text) - most // 2 :]}"
