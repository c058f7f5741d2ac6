"""Hunts and runs of pairs, for reports: how they are printed, and their answers on a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.plugins.hunt import text
from collbench.plugins.hunt.drain import lines_of
from collbench.plugins.hunt.facts import InsideHost, SlowInterfaces, WayToNetwork
from collbench.plugins.hunt.pair_statistics import INSIDE_HOST
from collbench.plugins.hunt.pairs_text import DIRECTED_PAIRS, measured
from collbench.plugins.hunt.protocol import BY_MESSAGES, CLEARED, CONFIRMED, TRUNK
from collbench.plugins.hunt.recommendation import lines, read
from collbench.plugins.hunt.records import (
    NO_VERDICT,
    NONE_SLOW,
    StoredHunt,
    StoredPairs,
    check_hunt,
    check_pairs,
    place_hosts,
    read_hunt,
    read_pairs,
)
from collbench.reason import decode_or_text
from collbench.report.frame import escaped, escaped_line
from collbench.report.headlines import short
from collbench.report.kinds import Destination, ResultKind, StoredRecords, SuspectLink
from collbench.units import format_percent, format_rate, plural

if TYPE_CHECKING:
    from collbench.analysis.concerns import Concern
    from collbench.plugins.hunt.pairs import PairEffects
    from collbench.report.html.first_screen import FirstScreen
    from collbench.report.material import Material
    from collbench.results.reader import Run


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
        line = line_of(run)
        if not hunt.verdict:
            title = "the hunt stopped early, without a verdict"
            return FirstScreen(title, (DOUBT, "NO VERDICT"), (), line, [text.describe_hunt(hunt)], "hunt")
        confirmed = [suspect for suspect in hunt.suspects if suspect.state == CONFIRMED]
        badge = (DOUBT, "NO VERDICT")
        if confirmed:
            badge = (BAD, "FAULTY")
        elif hunt.verdict.result == NONE_SLOW:
            badge = (GOOD, "HEALTHY")
        sentences = [text.finding(suspect, hunt.places) for suspect in confirmed]
        figures = []
        for suspect in confirmed[: MOST_FIGURES - 1]:
            if suspect.ratio is not None:
                places = " and ".join(hunt.places[place] for place in suspect.places)
                names = short(f"of the others: {suspect.part if suspect.kind == TRUNK else places}", 80)
                figures.append(LargeFigure(format_percent(100 * suspect.ratio), names))
        figures.append(LargeFigure(str(len(hunt.places)), f"{hunt.by}s searched"))
        if len(sentences) > 2:
            sentences[2:] = [f"and {len(sentences) - 2} more"]
        title = "; ".join(sentences) or text.headline(hunt.verdict)
        try:
            drains = (read(run.path) or {"drains": []})["drains"][: MOST_FIGURES - 1]
        except UsageError:
            drains = []  # the section has the error
        notes = [f"to drain {drain['node']}: `{drain['line']}`" for drain in drains if drain["line"]]
        notes.append(text.describe_hunt(hunt))
        typical = text.describe_typical(hunt)
        if typical:
            notes.append(typical)
        return FirstScreen(title, badge, figures, line, notes, "hunt")

    def concerns(self, material: Material) -> Iterator[Concern]:
        """Yield wrong data, and the suspects that are confirmed or inconclusive."""
        from collbench.plugins.hunt.page import concerns_of

        for _, hunt in material.of_kind(self.name):
            yield from concerns_of(hunt)

    def slow_links(self, material: Material) -> Iterator[SuspectLink]:
        """Yield the links of the suspects that are not cleared, unless the slow part is inside the host."""
        for _, stored in material.of_kind(self.name):
            hosts = place_hosts(stored.about)
            for suspect in stored.shown.suspects:
                part = decode_or_text(suspect.part_fact or "", WayToNetwork | SlowInterfaces | InsideHost)
                if suspect.state == CLEARED or suspect.kind not in (*BY_MESSAGES, "latency", "path") or isinstance(part, InsideHost):
                    continue
                interfaces: tuple[str, ...] = ()
                if isinstance(part, WayToNetwork):
                    interfaces = part.interfaces
                elif isinstance(part, SlowInterfaces):
                    interfaces = part.names
                names = _distinct(hosts, suspect.places)
                if len(names) == (2 if suspect.kind == "path" else 1):
                    share = None if suspect.kind == "latency" else suspect.ratio
                    yield SuspectLink(names, suspect.state == CONFIRMED, interfaces, share)


def _distinct(hosts: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(hosts[place] for place in places))


def advice_of(path: Path) -> tuple[list[str], list[str]]:
    """Return (the recommendation of a hunt and what was done, warnings if it cannot be read). path: of the run folder."""
    try:
        advice = read(path)
    except UsageError as error:
        return [], [str(error)]
    if not advice:
        return [], []
    refused = [advice["refused"]] if advice["refused"] else []
    return [*lines(advice), *lines_of(advice["applied"]), *refused], []


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

    def slow_links(self, material: Material) -> Iterator[SuspectLink]:
        """Yield the links of the slow places and pairs, unless only the paths inside a host are slow."""
        for _, pairs in material.of_kind(self.name):
            hosts = place_hosts(pairs.about)
            for finding in pairs.effects.findings():
                names = _distinct(hosts, finding.places)
                if finding.where != INSIDE_HOST and len(names) == (2 if finding.kind == "pair" else 1):
                    share = None if finding.quantity == "latency" else finding.ratio
                    yield SuspectLink(names, True, share=share)

    def screen(self, material: Material) -> FirstScreen | None:
        """Return the places and pairs that are slower than the others explain."""
        from collbench.report.html.first_screen import BAD, DOUBT, GOOD, MOST_FIGURES, FirstScreen, LargeFigure, line_of

        runs = material.of_kind(self.name)
        if not runs:
            return None
        run, pairs = runs[0]
        matrix = pairs.effects.matrix
        findings = pairs.effects.findings()
        badge = {CONFIRMED: (BAD, "SLOW"), NO_VERDICT: (DOUBT, "INCONCLUSIVE"), NONE_SLOW: (GOOD, "EVEN")}[pairs.effects.result]
        sentences = [finding.sentence(matrix.places) for finding in findings] or pairs.effects.inconclusive()[:1]
        if not sentences:
            badge, sentences = self._without_findings(pairs.effects)
        figures = []
        for finding in findings[: MOST_FIGURES - 1]:
            name = short(f"of the others: {finding.name(matrix.places)}", 80)
            figures.append(LargeFigure(format_percent(100 * finding.ratio), name))
        rates = sorted(float(rate) for rate in matrix.bandwidth.ravel() if rate > 0)
        if rates:
            figures.append(LargeFigure(f"{format_rate(rates[len(rates) // 2])} GB/s", "median of all pairs"))
        notes = [measured(matrix, pairs.shown_about), *sentences[1:4]]
        return FirstScreen(sentences[0], badge, figures, line_of(run), notes, "pairs")

    @staticmethod
    def _without_findings(effects: PairEffects) -> tuple[tuple[str, str], list[str]]:
        """Return the badge and the sentences of a matrix in which nothing was found to be slow: it is even only if all pairs are alike."""
        from collbench.report.html.first_screen import DOUBT, GOOD

        n = effects.matrix.n
        if not effects.views:
            return (DOUBT, "INCONCLUSIVE"), effects.doubts() or ["no pair was measured"]
        uneven = effects.uneven_pair()
        if uneven is None:
            return (GOOD, "EVEN"), [f"none of {n} places and none of their pairs is slower than the others"]
        names = effects.matrix.places
        reach = f"{uneven.name(names)}: {format_percent(100 * uneven.ratio)} of the {uneven.quantity} expected from their other pairs"
        if uneven.quantity == "latency":
            reach = f"{uneven.name(names)}: {1 / uneven.ratio:.2f} times the latency expected from their other pairs"
        return (DOUBT, "INCONCLUSIVE"), [f"{reach}; chance explains that in this measurement", *effects.doubts()]


def findings_of(effects: PairEffects) -> Iterator[Concern]:
    """Yield wrong data, slow places and pairs, and doubts."""
    from collbench.analysis.concerns import FINDING, NOTE, WRONG, Concern

    matrix = effects.matrix
    for a, b in matrix.wrong_pairs():
        wrong = f"{matrix.wrong[a, b]:.0f} elements are wrong"
        yield Concern(WRONG, f"wrong data between {matrix.places[a]} and {matrix.places[b]}: {wrong}")
    yield from (Concern(FINDING, finding.sentence(matrix.places)) for finding in effects.findings())
    yield from (Concern(NOTE, sentence) for sentence in effects.doubts())


HUNT = HuntKind()
PAIRS = PairsKind()
