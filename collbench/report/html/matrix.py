"""A matrix of pairs as an image, with the places and pairs that stand out by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from collbench.report.flags import explain, printable
from collbench.report.html.chart import Chart, Section, Table
from collbench.report.html.material import Material

if TYPE_CHECKING:  # they import numpy, which a page without such runs does not need
    from collbench.analysis.pairs import PairEffects, PairFinding
    from collbench.results.rounds import StoredPairs

_MOST_REASONS = 5


def section(material: Material) -> Section | None:
    """The section, or None where the runs have nothing for it."""
    if not material.pairs:
        return None
    from collbench.report.html.charts import Told, charts

    texts: list[str] = []
    tables: list[tuple[str, Table]] = []
    shown: list[Chart] = []
    for number, ((run, stored), effects) in enumerate(zip(material.pairs, material.effects, strict=True)):
        name = f"{printable(run.path.resolve().name)}: " if len(material.pairs) > 1 else ""
        found = effects.findings()
        texts += [f"{name}{text}" for text in _texts(stored, effects, found)]
        tables.append(_table(name, effects, found))
        places = {"node": "nodes", "rank": "ranks"}.get(str(stored.about.get("by")), "places")
        shown += charts(Told(f"pairs-{number}", name, places, effects, found, _samples(stored)))
    return Section("pairs", "Pairs: who is slow", texts, tables, shown)


def _texts(stored: StoredPairs, effects: PairEffects, found: Sequence[PairFinding]) -> list[str]:
    """What was measured, wrong data, findings, doubts, and what should be known of the rounds."""
    from collbench.report.pairs import measured, sentences, wrong_data

    about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
    flags = {flag for one in stored.rounds for flag in one.flags}
    said = [measured(effects.matrix, about), *wrong_data(effects.matrix), *sentences(effects.matrix, found), *effects.doubts()]
    return [printable(text) for text in (*said, *_unmeasured(stored), *explain(flags), *stored.warnings)]


def _unmeasured(stored: StoredPairs) -> list[str]:
    """How many pairs there was a reason not to measure, by reason."""
    reasons = Counter(why for one in stored.rounds for why in one.na if why is not None)
    named = [f"not measured: {number} {'pair' if number == 1 else 'pairs'}: {why}" for why, number in reasons.most_common(_MOST_REASONS)]
    return [*named, *([f"and {len(reasons) - len(named)} more reasons"] if len(reasons) > len(named) else [])]


def _table(name: str, effects: PairEffects, found: Sequence[PairFinding]) -> tuple[str, Table]:
    from collbench.report.pairs_table import TITLES, left_out, place_rows

    chosen, rows = place_rows(effects.matrix, found)
    slow = {place for each in found for place in each.places if each.kind != "pair"}
    marks = {row: "doubtful" for row, place in enumerate(chosen) if place in slow}
    what = left_out(effects.matrix, chosen) if len(chosen) < effects.matrix.n else "medians over partners"
    return f"{name}each place: {what}", Table(TITLES, rows, frozenset({1, 2, 3}), marks)


def _samples(stored: StoredPairs) -> tuple[int, int]:
    """The most samples that a round has: of the latency, of the bandwidth one way."""
    latency, forward, backward = (max((one.n[at] for one in stored.rounds), default=0) for at in range(3))
    return latency, max(forward, backward)
