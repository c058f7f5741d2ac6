"""What is said below the rows of a sweep over algorithms and protocols: where the library's own choice loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.analysis.launches import forced
from collbench.report.columns import value_of
from collbench.report.plan import SERIES
from collbench.results.row import Row
from collbench.units import format_percent, format_size

if TYPE_CHECKING:  # they import numpy, which a run that only prints rows does not need
    from collbench.analysis.best import Judged, Loss

TITLE = "the automatic choice of algorithm and protocol"
_ALWAYS = ("operation", "backend")
_CHOICE = ("algorithm", "protocol")
_BARE = ("root", "buffers", "window", "group", "ranks", "nodes", "registration")  # say nothing without their name
_MOST_SIZES = 4
_SOMETHING = 0.0005


def sentences(rows: Sequence[Row]) -> list[str]:
    """One sentence for each size at which something forced is faster, and one for the others; nothing where nothing was forced."""
    if not any(forced(row) for row in rows):
        return []
    from collbench.analysis.best import judged

    found = judged(rows)
    telling = [n for n in SERIES if n not in _CHOICE and (n in _ALWAYS or len({getattr(each.row, n) for each in found}) > 1)]
    return [f"{' '.join(_word(each.row, name) for name in telling)}: {sentence}" for each in found for sentence in _of_one(each)]


def _word(row: Row, name: str) -> str:
    return f"{name} {value_of(row, name)}" if name in _BARE else value_of(row, name)


def _of_one(judged: Judged) -> list[str]:
    losses = [_lost(loss) for loss in judged.losses]
    good, unknown = len(judged.as_good), judged.unknown
    as_good = f", or as good within {format_percent(100 * judged.within)}" if judged.within >= _SOMETHING else ""
    best = f"the automatic choice is the best{as_good}"
    if good and losses:
        losses.append(f"at {good} other {_sizes(good)} {best}")
    elif good:
        losses.append(f"{best}{',' if as_good else ''} at {good if unknown or good == 1 else f'all {good}'} {_sizes(good)}")
    if unknown:
        shown = ", ".join(map(format_size, unknown[:_MOST_SIZES])) + (" …" if len(unknown) > _MOST_SIZES else "")
        losses.append(f"{len(unknown)} {_sizes(len(unknown))} cannot be judged ({shown}): no sound times with intervals to compare")
    return losses


def _lost(loss: Loss) -> str:
    part, low, high = (format_percent(100 * each).removesuffix(" %") for each in (loss.part, loss.low, loss.high))
    where = format_size(loss.better.size_bytes)
    return f"automatic choice loses {part} % ({low} to {high}) at {where}: {forced(loss.better)} is faster"


def _sizes(number: int) -> str:
    return "size" if number == 1 else "sizes"
