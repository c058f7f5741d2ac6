"""Output of `collbench autopsy`: the verdict on the dumps of a job, its findings, and what to do next, as text and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collbench.plugins.traces.autopsy import AutopsyCause, AutopsyFinding, AutopsyResult, AutopsyVerdict
from collbench.plugins.traces.model import UNKNOWN
from collbench.reason import as_json
from collbench.report.frame import Column, Frame, Line, csv_lines, printable, text_lines
from collbench.units import first_of, noun_of, plural

if TYPE_CHECKING:
    from collbench.report.html.chart import Section

FORMATS = ("table", "csv", "json", "jsonl")
_MOST_RANKS = 32
_ADVICE = {
    AutopsyCause.NOT_ARRIVED: "Look at the log and the stack of {ranks} for an exception, for other data, or for an endless loop.",
    AutopsyCause.NO_DUMP: "Look at the process of {ranks}: in `ps`, T is a stopped one. `dmesg` shows a kill for lack of memory.",
    AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL: "Compare how many calls each rank makes: the data is uneven, or only some meet a condition.",
    AutopsyCause.NOT_STARTED: "Look at what runs on the GPU of {ranks} before this call: a kernel or a copy that does not end.",
    AutopsyCause.CIRCLE: "Call the groups in the same order on all ranks, and each receive of a send. `batch_isend_irecv` joins both.",
    AutopsyCause.PARTLY: "Compare the root and the data that each rank passes. Test the path between the ranks with `collbench pairs`.",
    AutopsyCause.NO_MEMBERS: "Compare which ranks call this group with its `new_group`.",
    AutopsyCause.NOT_SHOWN: "Increase TORCH_FR_BUFFER_SIZE, and write the dumps of all ranks at the same time.",
    AutopsyCause.NOTHING_MOVES: "Test the path between the ranks with `collbench pairs`. Write the dumps again, in case of a slow call.",
    AutopsyCause.OLDER_DUMP: "Write the dumps of all ranks again, at the same time.",
    AutopsyCause.SLOW: "Check the node of {ranks} with `collbench doctor` and `collbench pairs`, and compare its work with that of others.",
}
_MAY_WAIT = " With Gloo, a rank may wait in a send or recv, which the dumps do not contain."
_NOT_ARRIVED = (AutopsyCause.NOT_ARRIVED, AutopsyCause.NOT_ARRIVED_OR_ADDITIONAL, AutopsyCause.PARTLY, AutopsyCause.NO_MEMBERS)
_MISMATCH = "Compare the program at {ranks} with that of the other ranks: a condition, the data or the configuration differs."


def advice(finding: AutopsyFinding) -> str:
    """Return the next step for a finding, one or two sentences."""
    ranks = f"rank{'s' * (len(finding.ranks) > 1)} {_numbers(finding.ranks)}" if finding.ranks else "each rank"
    text = _ADVICE.get(finding.cause, _MISMATCH).format(ranks=ranks)
    return text + _MAY_WAIT if finding.without_messages and finding.cause in _NOT_ARRIVED else text


def frame(verdict: AutopsyVerdict) -> Frame[AutopsyFinding]:
    """Return the findings as a table, the cause first."""
    columns: list[Column[AutopsyFinding]] = [
        Column("cause", "cause", lambda finding: finding.cause.value),
        Column("ranks", "ranks", lambda finding: _numbers(finding.ranks)),
        Column("group", "group", lambda finding: printable(finding.group)),
        Column("operation", "operation", lambda finding: finding.operation),
        Column("sequence", "call", lambda finding: "" if finding.sequence == UNKNOWN else str(finding.sequence), right=True),
        Column("waiting", "waiting", lambda finding: _numbers(finding.waiting)),
        Column("place", "place", lambda finding: printable(finding.place)),
        Column("finding", "finding", lambda finding: printable(finding.render())),
    ]
    return Frame(columns, list(verdict.findings))


def _numbers(ranks: tuple[int, ...]) -> str:
    return first_of(map(str, ranks), _MOST_RANKS, " ")


def autopsy_lines(verdict: AutopsyVerdict, format: str, width: int | None = None) -> Iterator[Line]:
    """Yield the verdict in `format`, one of FORMATS; as CSV a line per finding."""
    if format in ("json", "jsonl"):
        yield Line(json.dumps({**as_json(verdict), "exit_code": verdict.exit_code, "text": verdict.render()}, ensure_ascii=True))
        return
    if format == "csv":
        yield from csv_lines(frame(verdict))
        return
    style = {AutopsyResult.FOUND: "wrong", AutopsyResult.INCONCLUSIVE: "doubtful"}.get(verdict.result, "")
    yield from text_lines(verdict.render(), width, style)
    for number, finding in enumerate(verdict.findings):
        if number:
            yield from text_lines(finding.render(), width)
        yield from text_lines(f"  {advice(finding)}", width, indent="  ")
    if verdict.result is AutopsyResult.FOUND and verdict.absent:
        yield from text_lines(f"No dump: rank {first_of(map(str, verdict.absent), _MOST_RANKS)}.", width)
    for file in verdict.damaged:
        yield from text_lines(printable(f"Left out: {file.render()}."), width)


_LONGEST, _MOST_FILES = 400, 4


def write_autopsy(verdict: AutopsyVerdict, form: str, where: Path) -> None:
    """Write the page in one step; `form` is that of the traces. Raises UsageError if the file cannot be written."""
    from collbench.report.headlines import short
    from collbench.report.html.chart import Section, Table
    from collbench.report.html.first_screen import BAD, DOUBT, GOOD, FirstScreen, LargeFigure
    from collbench.report.html.page import write_page

    badge = {AutopsyResult.NOTHING_FOUND: (GOOD, "NOTHING FOUND"), AutopsyResult.FOUND: (BAD, "CAUSE FOUND")}.get(
        verdict.result, (DOUBT, "INCONCLUSIVE")
    )
    figures = [
        LargeFigure(f"{verdict.read} of {verdict.world}", f"{noun_of(verdict.world, 'rank')} with a dump"),
        LargeFigure(f"{verdict.calls:,}", f"{noun_of(verdict.calls, 'call')} compared"),
        LargeFigure(str(verdict.groups), noun_of(verdict.groups, "process group")),
    ]
    more = [short(advice(finding), _LONGEST) for finding in verdict.findings[:1]]
    more += [short(f"Left out: {file.render()}.", _LONGEST) for file in verdict.damaged[:_MOST_FILES]]
    screen = FirstScreen(short(verdict.render(), _LONGEST), badge, figures, f"autopsy of {form} traces", more)

    def sections() -> Sequence[Section]:
        if not verdict.findings:
            return []
        texts = [f"{short(finding.render(), _LONGEST)}. {short(advice(finding), _LONGEST)}" for finding in verdict.findings]
        caption = f"{plural(len(verdict.findings), 'finding')}, the cause first"
        return [Section("findings", "Findings", texts, [(caption, Table.of(frame(verdict)))])]

    write_page(where, screen, sections)
