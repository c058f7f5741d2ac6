"""The page of an autopsy: the verdict, each finding with its evidence, and the ranks with and without a dump."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from collbench.plugins.traces.autopsy import AutopsyResult, AutopsyVerdict
from collbench.plugins.traces.autopsy_text import advice, frame
from collbench.report.headlines import short
from collbench.report.html.chart import Section, Table
from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure
from collbench.report.html.page import write_page
from collbench.units import noun_of, plural

_LONGEST = 400
_MOST_FILES = 4
_BADGES = {
    AutopsyResult.NOTHING_FOUND: (GOOD, "NOTHING FOUND"),
    AutopsyResult.FOUND: (BAD, "CAUSE FOUND"),
    AutopsyResult.INCONCLUSIVE: (DOUBT, "INCONCLUSIVE"),
}


def write_autopsy(verdict: AutopsyVerdict, form: str, where: Path) -> None:
    """Write the page in one step; `form` is that of the traces. Raises UsageError if the file cannot be written."""
    write_page(where, first_screen_of(verdict, form), lambda: _sections(verdict))


def first_screen_of(verdict: AutopsyVerdict, form: str) -> FirstScreen:
    """Return the first screen: the verdict, the next step, and how much was compared."""
    figures = [
        LargeFigure(f"{verdict.read} of {verdict.world}", f"{noun_of(verdict.world, 'rank')} with a dump"),
        LargeFigure(f"{verdict.calls:,}", f"{noun_of(verdict.calls, 'call')} compared"),
        LargeFigure(str(verdict.groups), noun_of(verdict.groups, "process group")),
    ]
    more = [short(advice(finding), _LONGEST) for finding in verdict.findings[:1]]
    more += [short(f"Left out: {file.render()}.", _LONGEST) for file in verdict.damaged[:_MOST_FILES]]
    return FirstScreen(short(verdict.render(), _LONGEST), _BADGES[verdict.result], figures, f"autopsy of {form} traces", more)


def _sections(verdict: AutopsyVerdict) -> Sequence[Section]:
    if not verdict.findings:
        return []
    texts = [f"{short(each.render(), _LONGEST)}. {short(advice(each), _LONGEST)}" for each in verdict.findings]
    caption = f"{plural(len(verdict.findings), 'finding')}, the cause first"
    return [Section("findings", "Findings", texts, [(caption, Table.of(frame(verdict)))])]
