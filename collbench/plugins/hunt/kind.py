"""Hunts and runs of pairs, for reports: how they are printed, and their answers on a page."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import UsageError
from collbench.plugins.hunt import text
from collbench.plugins.hunt.drain import lines, lines_of, read
from collbench.plugins.hunt.records import StoredHunt, StoredPairs, check_hunt, check_pairs, read_hunt, read_pairs
from collbench.report.frame import escaped, escaped_line
from collbench.report.headlines import short
from collbench.report.kinds import Destination, RunKind, StoredRecords
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.plugins.hunt.pairs import PairEffects
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


# Hunts.


class HuntKind(RunKind):
    """Hunts for the slow node, NIC or link."""

    name = "hunt"
    what = "a hunt"

    def holds(self, run: Run) -> bool:
        """Return whether the run is a hunt, also with an invalid description in run.json."""
        return self.name in run.info or (run.path / self.file).is_file()

    def check(self, run: Run) -> None:
        """Raise UsageError if run.json does not describe a hunt."""
        check_hunt(run)

    def read(self, run: Run) -> StoredRecords:
        """Return the hunt, a StoredHunt."""
        hunt = read_hunt(run)
        return StoredRecords(hunt, hunt.warnings)

    def show(self, run: Run, stored: StoredRecords, to: Destination) -> bool:
        """Print the outcome of the hunt, and its recommendation."""
        hunt: StoredHunt = stored.records
        advice, unread = advice_of(run.path)
        state = "" if run.finished and hunt.about.get("verdict") else ", not finished"
        done = len(hunt.rounds)
        to.begin(run, f"{plural(done, 'round')}{state}", [*stored.warnings, *unread])
        about = {**hunt.about, "rounds": done}
        text.write_hunt(about, to.format, to.out, color=to.color, advice=advice, run=run.path.resolve().name, headed=to.headed)
        return True

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the confirmed suspects with their evidence."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, MOST_FIGURES, FirstScreen, LargeFigure, line_of

        hunts = material.of_kind(self.name)
        if not hunts:
            return None
        run, stored = hunts[0]
        about = {**stored.about, "rounds": len(stored.rounds)}
        verdict = about.get("verdict")
        line = line_of(run)
        places = about["places"]
        if not verdict:
            title = "the hunt stopped early, without a verdict"
            return FirstScreen(title, (DOUBT, "NO VERDICT"), (), line, [text.describe_hunt(about)], "hunt")
        confirmed = [suspect for suspect in verdict["suspects"] if suspect["state"] == "confirmed"]
        badge = (BAD, "FAULTY") if confirmed else (GOOD, "HEALTHY") if verdict["result"] == "nobody" else (DOUBT, "NO VERDICT")
        sentences = [text.finding(suspect, places) for suspect in confirmed]
        figures = [
            LargeFigure(
                format_percent(100 * suspect["ratio"]), short(f"of the others: {' and '.join(places[at] for at in suspect['places'])}", 80)
            )
            for suspect in confirmed[: MOST_FIGURES - 1]
            if isinstance(suspect.get("ratio"), int | float) and isfinite(suspect["ratio"])
        ]
        figures.append(LargeFigure(str(len(places)), f"{about.get('by', 'endpoint')}s searched"))
        rest = [f"and {len(sentences) - 2} more"] if len(sentences) > 2 else []
        title = "; ".join([*sentences[:2], *rest]) or text.headline(verdict)
        more = [*_drains(run), text.describe_hunt(about), *filter(None, [text.describe_typical(about)])]
        return FirstScreen(title, badge, figures, line, more, "hunt")

    def concerns(self, material: Material) -> Iterator[Concern]:
        """Yield wrong data, and the suspects that are confirmed or inconclusive."""
        from collbench.plugins.hunt.page import concerns_of

        for _, hunt in material.of_kind(self.name):
            yield from concerns_of(hunt)


def advice_of(path: Path) -> tuple[list[str], list[str]]:
    """Return (the recommendation of a hunt and what was done, warnings if it cannot be read). path: of the run folder."""
    try:
        advice = read(path)
    except UsageError as error:
        return [], [str(error)]
    return [*lines(advice), *lines_of(advice["applied"]), *filter(None, [advice["refused"]])] if advice else [], []


def _drains(run: Run) -> list[str]:
    """Return the commands that drain the first faulty nodes; none if recommendation.json is missing or not valid."""
    from collbench.report.html.first_screen import MOST_FIGURES

    try:
        drains = (read(run.path) or {"drains": []})["drains"]
    except UsageError:
        return []  # the section has the error
    return [f"to drain {drain['node']}: `{drain['line']}`" for drain in drains[: MOST_FIGURES - 1] if drain["line"]]


# Runs of pairs.


class PairsOfRun:
    """The pairs of a run, and what follows from them."""

    def __init__(self, stored: StoredPairs) -> None:
        self.stored = stored

    @cached_property
    def effects(self) -> PairEffects:
        """The matrix, the pairs measured again, findings and doubts."""
        from collbench.plugins.hunt.pairs import PairEffects, remeasured

        again = {pair for one in self.stored.rounds if one.again for pair in one.pairs}
        return PairEffects(self.stored.matrix(), again, remeasured=remeasured(self.stored.about.get("judged")))


class PairsKind(RunKind):
    """Runs of pairs."""

    name = "pairs"
    what = "a matrix of pairs"
    drawn = True
    answers_last = True

    def holds(self, run: Run) -> bool:
        """Return whether the run measured pairs, also with an invalid description in run.json."""
        return run.info.get(self.name) is not None or (run.path / self.file).is_file()

    def check(self, run: Run) -> None:
        """Raise UsageError if run.json does not describe pairs."""
        check_pairs(run)

    def read(self, run: Run) -> StoredRecords:
        """Return the pairs, a PairsOfRun."""
        pairs = read_pairs(run)
        assert pairs is not None
        return StoredRecords(PairsOfRun(pairs), pairs.warnings)

    def show(self, run: Run, stored: StoredRecords, to: Destination) -> bool:
        """Print the matrix."""
        from collbench.plugins.hunt.pairs_text import write_pairs

        pairs: StoredPairs = stored.records.stored
        effects: PairEffects = stored.records.effects
        done = len(pairs.rounds)
        planned = pairs.about.get("rounds")
        state = plural(done, "round")
        if not run.finished or pairs.about.get("measured") is None:  # run.json of a launch that ended early has no "measured"
            if isinstance(planned, int) and planned > done:
                state = f"{done} of {planned} rounds"
            state += ", not finished"
        to.begin(run, state, stored.warnings)
        about = {**pairs.about, "rounds": len({each.round for each in pairs.rounds if not each.again})}
        write_pairs(
            effects, about, to.format, to.out, color=to.color, external=pairs.external, run=run.path.resolve().name, headed=to.headed
        )
        return True

    def markdown(self, material: Material) -> Iterator[str]:
        """Yield what was measured of each run."""
        from collbench.plugins.hunt.pairs_text import measured

        for run, pairs in material.of_kind(self.name):
            title = f"## {escaped(short(run.path.resolve().name, 80))}"
            yield from ("", title, "", escaped_line(measured(pairs.effects.matrix, pairs.stored.about)))

    def findings(self, material: Material) -> Iterator[Concern]:
        """Yield wrong data, slow places and pairs, doubts, and what could not be read of the rounds."""
        from collbench.analysis.concerns import MISSING, Concern

        for _, pairs in material.of_kind(self.name):
            yield from findings_of(pairs.effects)
            yield from (Concern(MISSING, warning) for warning in pairs.stored.warnings)

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the places and pairs that are slower than the others explain."""
        from collbench.plugins.hunt.pairs_text import measured
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, MOST_FIGURES, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        if not runs:
            return None
        run, pairs = runs[0]
        stored = pairs.stored
        effects = pairs.effects
        names, found, open_ones = effects.matrix.places, effects.findings(), effects.inconclusive()
        about = {**stored.about, "rounds": len({one.round for one in stored.rounds if not one.again})}
        badge = (BAD, "SLOW") if found else (DOUBT, "INCONCLUSIVE") if open_ones else (GOOD, "EVEN")
        even = f"no place and no pair among {len(names)} is slower than the others"
        title, *others = [each.sentence(names) for each in found] or [*open_ones[:1]] or [even]
        rates = sorted(float(rate) for rate in effects.matrix.bandwidth.ravel() if rate > 0)
        worst = found[: MOST_FIGURES - 1]
        figures = [LargeFigure(format_percent(100 * each.ratio), short(f"of the others: {each.name(names)}", 80)) for each in worst]
        figures += [LargeFigure(f"{format_rate(rates[len(rates) // 2])} GB/s", "median of all pairs")] if rates else []
        return FirstScreen(title, badge, figures, line_of(run), [measured(effects.matrix, about), *others[:3]], "pairs")


def findings_of(effect: PairEffects) -> Iterator[Concern]:
    """Yield wrong data, slow places and pairs, and doubts."""
    import numpy as np

    from collbench.analysis.concerns import FINDING, NOTE, WRONG, Concern

    matrix = effect.matrix
    for a, b in np.argwhere(np.triu(np.nan_to_num(matrix.wrong) > 0)).tolist():
        wrong = f"{matrix.wrong[a, b]:.0f} elements are wrong"
        yield Concern(WRONG, f"wrong data between {matrix.places[a]} and {matrix.places[b]}: {wrong}")
    yield from (Concern(FINDING, each.sentence(matrix.places)) for each in effect.findings())
    yield from (Concern(NOTE, sentence) for sentence in effect.doubts())


HUNT = HuntKind()
PAIRS = PairsKind()
