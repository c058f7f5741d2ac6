"""Hunts and runs of pairs, for reports: how they are printed, and their answers on a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.errors import UsageError
from collbench.plugins.hunt import text
from collbench.plugins.hunt.drain import lines, lines_of, read
from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS, measured
from collbench.plugins.hunt.protocol import CONFIRMED
from collbench.plugins.hunt.records import NO_VERDICT, NONE_SLOW, StoredHunt, StoredPairs, check_hunt, check_pairs, read_hunt, read_pairs
from collbench.report.frame import escaped, escaped_line
from collbench.report.headlines import short
from collbench.report.kinds import Destination, ResultKind, StoredRecords
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.plugins.hunt.pairs import PairEffects
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


# Hunts.


class HuntKind(ResultKind):
    """Hunts for the slow node, NIC or link."""

    name = "hunt"
    what = "a hunt"
    declared = text.SUSPECTS

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

    def state(self, run: Run, result: StoredHunt) -> str:
        """Return the number of rounds."""
        finished = run.finished and result.about.get("verdict")
        return f"{plural(len(result.rounds), 'round')}{'' if finished else ', not finished'}"

    def show(self, run: Run, stored: StoredRecords, to: Destination) -> bool:
        """Print the outcome of the hunt, and its recommendation."""
        advice, unread = advice_of(run.path)
        return super().show(run, StoredRecords(replace(stored.records, advice=advice), [*stored.warnings, *unread]), to)

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the confirmed suspects with their evidence."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, MOST_FIGURES, FirstScreen, LargeFigure, line_of

        hunts = material.of_kind(self.name)
        if not hunts:
            return None
        run, stored = hunts[0]
        hunt = stored.shown
        verdict, places, line = hunt.verdict, hunt.places, line_of(run)
        if not verdict:
            title = "the hunt stopped early, without a verdict"
            return FirstScreen(title, (DOUBT, "NO VERDICT"), (), line, [text.describe_hunt(hunt)], "hunt")
        confirmed = [suspect for suspect in verdict.suspects if suspect.state == CONFIRMED]
        badge = (DOUBT, "NO VERDICT")
        if confirmed:
            badge = (BAD, "FAULTY")
        elif verdict.result == NONE_SLOW:
            badge = (GOOD, "HEALTHY")
        sentences = [text.finding(suspect, places) for suspect in confirmed]
        figures = []
        for suspect in confirmed[: MOST_FIGURES - 1]:
            if suspect.ratio is not None:
                names = short(f"of the others: {' and '.join(places[place] for place in suspect.places)}", 80)
                figures.append(LargeFigure(format_percent(100 * suspect.ratio), names))
        figures.append(LargeFigure(str(len(places)), f"{hunt.by}s searched"))
        if len(sentences) > 2:
            sentences[2:] = [f"and {len(sentences) - 2} more"]
        title = "; ".join(sentences) or text.headline(verdict)
        try:
            drains = (read(run.path) or {"drains": []})["drains"][: MOST_FIGURES - 1]
        except UsageError:
            drains = []  # the section has the error
        more = [f"to drain {drain['node']}: `{drain['line']}`" for drain in drains if drain["line"]]
        more += [text.describe_hunt(hunt), *filter(None, [text.describe_typical(hunt)])]
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


# Runs of pairs.


class PairsKind(ResultKind):
    """Runs of pairs."""

    name = "pairs"
    what = "a matrix of pairs"
    declared = DIRECTED_PAIRS
    drawn = True
    answers_last = True

    def holds(self, run: Run) -> bool:
        """Return whether the run measured pairs, also with an invalid description in run.json."""
        return run.info.get(self.name) is not None or (run.path / self.file).is_file()

    def check(self, run: Run) -> None:
        """Raise UsageError if run.json does not describe pairs."""
        check_pairs(run)

    def read(self, run: Run) -> StoredRecords:
        """Return the pairs, a StoredPairs."""
        pairs = read_pairs(run)
        assert pairs is not None
        return StoredRecords(pairs, pairs.warnings)

    def state(self, run: Run, result: StoredPairs) -> str:
        """Return the number of rounds."""
        done = len(result.rounds)
        if run.finished and result.about.get("measured") is not None:  # run.json of a launch that ended early has no "measured"
            return plural(done, "round")
        planned = result.about.get("rounds")
        rounds = f"{done} of {planned} rounds" if isinstance(planned, int) and planned > done else plural(done, "round")
        return f"{rounds}, not finished"

    def markdown(self, material: Material) -> Iterator[str]:
        """Yield what was measured of each run."""
        for run, pairs in material.of_kind(self.name):
            title = f"## {escaped(short(run.path.resolve().name, 80))}"
            yield from ("", title, "", escaped_line(measured(pairs.effects.matrix, pairs.about)))

    def findings(self, material: Material) -> Iterator[Concern]:
        """Yield wrong data, slow places and pairs, doubts, and what could not be read of the rounds."""
        from collbench.analysis.concerns import MISSING, Concern

        for _, pairs in material.of_kind(self.name):
            yield from findings_of(pairs.effects)
            yield from (Concern(MISSING, warning) for warning in pairs.warnings)

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the places and pairs that are slower than the others explain."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, MOST_FIGURES, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        if not runs:
            return None
        run, pairs = runs[0]
        matrix, findings, inconclusive = pairs.effects.matrix, pairs.effects.findings(), pairs.effects.inconclusive()
        badge = {CONFIRMED: (BAD, "SLOW"), NO_VERDICT: (DOUBT, "INCONCLUSIVE"), NONE_SLOW: (GOOD, "EVEN")}[pairs.effects.result]
        sentences = [finding.sentence(matrix.places) for finding in findings] or inconclusive[:1]
        title = sentences[0] if sentences else f"no place and no pair among {matrix.n} is slower than the others"
        figures = []
        for finding in findings[: MOST_FIGURES - 1]:
            name = short(f"of the others: {finding.name(matrix.places)}", 80)
            figures.append(LargeFigure(format_percent(100 * finding.ratio), name))
        rates = sorted(float(rate) for rate in matrix.bandwidth.ravel() if rate > 0)
        if rates:
            figures.append(LargeFigure(f"{format_rate(rates[len(rates) // 2])} GB/s", "median of all pairs"))
        more = [measured(matrix, pairs.shown_about), *sentences[1:4]]
        return FirstScreen(title, badge, figures, line_of(run), more, "pairs")


def findings_of(effect: PairEffects) -> Iterator[Concern]:
    """Yield wrong data, slow places and pairs, and doubts."""
    from collbench.analysis.concerns import FINDING, NOTE, WRONG, Concern

    matrix = effect.matrix
    for a, b in matrix.wrong_pairs():
        wrong = f"{matrix.wrong[a, b]:.0f} elements are wrong"
        yield Concern(WRONG, f"wrong data between {matrix.places[a]} and {matrix.places[b]}: {wrong}")
    yield from (Concern(FINDING, finding.sentence(matrix.places)) for finding in effect.findings())
    yield from (Concern(NOTE, sentence) for sentence in effect.doubts())


HUNT = HuntKind()
PAIRS = PairsKind()
