"""The gate's verdict in the formats of other programs: GitHub annotations, JUnit XML, Nagios, Markdown, OpenMetrics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from collbench.errors import UsageError
from collbench.gating import verdict as verdicts
from collbench.gating.allocation import COLUMNS
from collbench.gating.reasons import WAITING, rendered
from collbench.gating.verdict import ACCEPTED, CLEARED, CONFIRMED, EXIT_CODES, PASSED, REGRESSION, SUSPECTED, UNDECIDED, WRONG_DATA, Verdict
from collbench.records import document
from collbench.report import verdict as texts
from collbench.report.forms import json_line
from collbench.report.frame import Frame, Line, escaped, escaped_line, items, markdown_lines, markdown_table
from collbench.report.headlines import short
from collbench.report.verdict import Part, headline, judged, name_of, of, of_change, sentences
from collbench.report.writers import STDOUT, Metric, Sample, column_samples, exposed, write_whole
from collbench.results.store import to_page
from collbench.untrusted import open_file

if TYPE_CHECKING:
    from junitparser import TestCase


# GitHub annotations: workflow commands that the runner reads from the log.

_MOST = 10  # of a kind in a step; GitHub shows no more
_ANNOTATIONS_LONGEST = 1000
_KINDS = ("error", "warning", "notice")
_OF_STATE = {CONFIRMED: "error", SUSPECTED: "warning", ACCEPTED: "notice"}


def annotation_lines(verdict: Verdict) -> Iterator[Line]:
    """Yield the result, what is slower, what is undecided, and what changed: at most ten errors, warnings and notices each."""
    cause = [f"likely cause: {verdict.cause.render()}"] if verdict.cause is not None else []
    text = "; ".join([headline(verdict), *cause, *rendered(verdict.reasons[:3]), judged(verdict)])
    annotations = [("notice" if verdict.result == PASSED else "error", f"collbench gate: {verdict.result}", text)]  # first: never cut
    annotations += [(_OF_STATE[part.state], f"{part.state}: {name_of(part)}", of(part)) for part in texts.open_ones(verdict)]
    undecided: list[Part] = [*(group for group in verdict.groups if group.state == UNDECIDED), *texts.unknown_floors(verdict)]
    annotations += [("warning", f"no verdict: {name_of(part)}", of(part)) for part in undecided]
    annotations += [("warning", "collbench gate: reason", reason) for reason in rendered(verdict.reasons)]
    annotations += [("notice", "change since the last good allocation", of_change(change)) for change in verdict.changes]
    annotations += [("notice", "collbench gate: note", note) for note in rendered(verdict.notes)]
    for kind in _KINDS:
        annotations_of_kind = [annotation for annotation in annotations if annotation[0] == kind]
        for _, title, message in annotations_of_kind[:_MOST]:
            escaped_title = _data(title).replace(":", "%3A").replace(",", "%2C")
            yield Line(f"::{kind} title={escaped_title}::{_data(message)}")


def _data(text: str) -> str:
    """Return the text escaped for the message (toolkit/packages/core, escapeData); a newline could begin another command."""
    return short(text, _ANNOTATIONS_LONGEST).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


# All output files.

_SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub expects that text of earlier commands stays


class OutputFiles(msgspec.Struct, frozen=True):
    """The output files; None: not requested."""

    out: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    openmetrics: Path | None = None
    html: Path | None = None

    def check(self) -> None:
        """Raise UsageError, before the verdict, for stdout and for formats with a missing package."""
        for name, path in asdict(self).items():
            if path == STDOUT:
                raise UsageError(f"--{name} cannot write to stdout: use a file name")
            if name == "junit" and path is not None and find_spec("junitparser") is None:
                raise UsageError("--junit needs junitparser: pip install 'collbench[report]'")


def write_files(verdict: Verdict, files: OutputFiles, runs: Sequence[Path], baseline: Path | None = None) -> None:
    """Write all files atomically, verdict.json first. `runs` are the candidate's, and `baseline` is for the page. Raises UsageError."""
    if files.out:
        write_whole(files.out, to_page(document(verdict)), "--out")
    if files.junit:
        write_whole(files.junit, junit(verdict), "--junit")
    if files.markdown and not is_summary(files.markdown):
        write_whole(files.markdown, markdown(verdict), "--markdown")
    elif files.markdown:
        try:
            with files.markdown.open("a", encoding="utf-8") as file:
                file.write(markdown(verdict, LARGEST - file.tell()))
        except OSError as error:
            raise UsageError(f"--markdown {files.markdown}: cannot write ({error.strerror or error}); choose another file") from error
    if files.openmetrics:
        write_whole(files.openmetrics, openmetrics(verdict), "--openmetrics")
    if files.html:
        from collbench.report.html.page import write_html
        from collbench.report.material import Material
        from collbench.report.runs import readable

        read = readable(runs)
        write_html(Material(read.runs, files.html, read.warnings, verdict, baseline))


def verdict_lines(verdict: Verdict, format: str, style: str, width: int | None = None) -> Iterator[Line]:
    """Yield what is printed: a status line for `style` nagios, else the verdict in `format`: table, json or github."""
    if style == verdicts.NAGIOS:
        yield from status_lines(verdict)
    elif format == "github":
        yield from annotation_lines(verdict)
    elif format == "json":
        yield json_line(verdict)
    else:
        yield from texts.lines(verdict, width)


def is_summary(path: Path) -> bool:
    """Return whether it is the summary file of a GitHub step."""
    summary = os.environ.get(_SUMMARY)
    return bool(summary) and Path(summary or "").resolve() == path.resolve()


# Files of an earlier gate are removed before this one judges. After a failure Jenkins or a collector would read the old verdict as new.

_BEGINNING = 4096  # bytes that identify an output of the gate
_IS_OWN_FILE: Mapping[str, Callable[[str], bool]] = {
    "out": lambda text: text.startswith("{") and '"exit_code":' in text and '"result":' in text,
    "junit": lambda text: '<testsuite name="collbench gate"' in text,
    "markdown": lambda text: text.startswith("## ") and "collbench gate: " in text.partition("\n")[0],
    "openmetrics": lambda text: text.startswith("# HELP collbench_gate_"),
    "html": lambda text: "<title>collbench" in text,
}


def remove_earlier(files: OutputFiles, read: Path | None = None) -> None:
    """Remove the files of an earlier gate. `read` is the verdict to show: it stays until it is replaced.

    Empty files, pipes and the summary of a GitHub step stay too. Raises UsageError, before anything is removed, for a file that no gate
    wrote.
    """
    earlier = []
    for option, path in asdict(files).items():
        if path is None or is_summary(path):
            continue
        try:
            begins = b""
            if path.is_file():
                with open_file(path) as file:
                    begins = file.read(_BEGINNING)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"--{option} {path}: cannot write ({reason}); choose another file") from error
        if begins and not _IS_OWN_FILE[option](begins.decode(errors="replace")):
            raise UsageError(
                f"--{option} {path} was not written by `collbench gate --{option}`, so it is not replaced: choose another file"
            )
        if begins and (read is None or path.resolve() != read.resolve()):
            earlier.append((option, path, path.resolve()))
    for option, path, target in earlier:
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise UsageError(f"--{option} {path}: cannot remove the file of an earlier gate ({error.strerror}); remove it") from error


# JUnit XML for Jenkins and GitLab, in the form of Ant's schema (windyroad/JUnit-Schema): a test case for each group, each floor, and the
# whole. An undecided one is an error, since a skipped test looks like a passed one.

_MOST_LINES = 60
_OPEN = (CONFIRMED, SUSPECTED, UNDECIDED)


def junit(verdict: Verdict) -> str:
    """Return the whole file. Raises UsageError without the extra `report`."""
    try:
        from junitparser import SystemErr, SystemOut, TestSuite
    except ImportError as error:
        raise UsageError("--junit needs junitparser: pip install 'collbench[report]'") from error
    slower = [f"{part.state}: {name_of(part)}: {of(part)}" for part in texts.open_ones(verdict)]
    changes = [of_change(change) for change in verdict.changes[:_MOST_LINES]]
    notes = [judged(verdict), *sentences(verdict.notes, 20)]
    everything = [*texts.likely_cause(verdict), *sentences(verdict.reasons, 20), *sentences(slower, _MOST_LINES), *changes, *notes]
    suite: Any = TestSuite("collbench gate")
    suite.timestamp = f"{verdict.judged_on[:10]}T00:00:00"
    suite.hostname = "localhost"  # the runs are of many hosts
    suite.add_property("result", verdict.result)
    suite.add_property("baseline", short(verdict.baseline))
    suite.add_property("candidates", ", ".join(short(name, 80) for name in verdict.candidates[:6]))
    suite.add_property("collbench", short(verdict.collbench, 40))
    suite.add_testcases(list(_test_cases(verdict, everything, changes)))
    suite.append(SystemOut("\n".join(everything)))
    suite.append(SystemErr(""))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + str(suite.tostring(), "utf-8") + "\n"


def _test_cases(verdict: Verdict, everything: Sequence[str], changes: Sequence[str]) -> Iterator[TestCase]:
    """Yield the test case of the verdict, of its reasons, of all cases together, of each group and of each floor."""
    result_of = partial(_test_case, verdict.result)
    yield result_of("verdict", "the verdict", verdict.result, headline(verdict), more=everything)
    open_reasons = [reason for reason in verdict.reasons if not isinstance(reason, WAITING)]
    state = UNDECIDED if open_reasons else PASSED
    first_reasons = "; ".join(sentences(open_reasons, 3))
    more = sentences(open_reasons, _MOST_LINES)
    yield result_of("verdict", "comparable: software, clocks, machine state", state, first_reasons, more=more)
    whole = next((part for part in texts.open_ones(verdict) if isinstance(part, verdicts.Suspicion) and part.kind == "whole"), None)
    yield result_of("verdict", "all cases", whole.state if whole else PASSED, of(whole) if whole else "")
    for group in verdict.groups:
        suspicions = [part for part in verdict.suspicions if part.kind == "group" and part.name == group.name]
        more = [*(f"{part.state}: {of(part)}" for part in suspicions), *changes]  # its cases are in the verdict's own case
        yield result_of("groups", name_of(group), group.state, of(group), more=more)
    for asked in dict.fromkeys([*verdict.asked, *(floor.asked for floor in verdict.floors)]):  # with the state of its worst case
        cases = [floor for floor in verdict.floors if floor.asked == asked and floor.state in _OPEN]
        state = next((state for state in _OPEN if state in {floor.state for floor in cases}), PASSED)
        bad = [f"{floor.state}: {name_of(floor)}: {of(floor)}" for floor in cases]
        yield result_of("floors", short(asked, 60), state, bad[0] if bad else "", more=sentences(bad, _MOST_LINES))


def _test_case(result: str, kind: str, name: str, state: str, message: str, *, more: Sequence[str] = ()) -> TestCase:
    """Return a test case, without a failure if its state is fine. If the result is "no verdict", none is a failure, even a slow one."""
    from junitparser import Error, Failure, TestCase

    case = TestCase(name, f"collbench.gate.{kind}", 0.0)
    if state in (REGRESSION, WRONG_DATA) or (state == CONFIRMED and result in (REGRESSION, WRONG_DATA)):
        outcome: Failure | Error = Failure(message, REGRESSION if state == CONFIRMED else state)
    elif state in (UNDECIDED, SUSPECTED, CONFIRMED):
        outcome = Error(message, state)
    else:
        return case
    outcome.text = "\n".join(more)
    case.result = outcome
    return case


# One status line for Nagios (Monitoring Plugins Development Guidelines): the state, the text, then figures.

_STATES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_STATUS_LONGEST = 400  # characters; old NRPE transfers 1,024 bytes


def status_lines(verdict: Verdict) -> list[Line]:
    """Return "COLLBENCH CRITICAL - regression: 1 confirmed: allreduce 64 MiB mpi +12.0 % … | confirmed=1;;0;0 …"."""
    worst = next(texts.open_ones(verdict), None)
    first = [verdict.cause.render()] if verdict.cause is not None else []
    if worst is not None:
        first.append(f"{name_of(worst)} {of(worst)}")
    text = _plain("; ".join([headline(verdict), *first, *rendered(verdict.reasons)]))
    unknown = sum(group.state == UNDECIDED for group in verdict.groups)
    figures = {  # value;warning;critical;minimum
        CONFIRMED: f"{verdict.count(CONFIRMED)};;0;0", SUSPECTED: f"{verdict.count(SUSPECTED)};0;;0",
        ACCEPTED: f"{verdict.count(ACCEPTED)};0;;0", "groups": f"{len(verdict.groups)};;;0", "unknown_groups": f"{unknown};;;0",
        "cells": f"{verdict.cases};;;0", "baseline_allocations": f"{verdict.allocations};;;0",
    }  # fmt: skip
    shown = " ".join(f"{name}={figure}" for name, figure in figures.items())
    return [Line(f"COLLBENCH {_STATES[verdicts.nagios_state(verdict)]} - {text} | {shown}")]


def of_failure(sentence: str) -> Line:
    """Return "COLLBENCH UNKNOWN - nowhere is not a baseline …" if the verdict is missing."""
    return Line(f"COLLBENCH UNKNOWN - {_plain(sentence)}")


def _plain(text: str) -> str:
    """Return the text on one line, without the bar that begins the figures."""
    return short(text, _STATUS_LONGEST).replace("|", "/")


# Markdown for a pull request or the summary of a GitHub step: the result, the worst 20 rows, the rest folded.

LARGEST = 1_000_000  # bytes: GitHub drops a step's summary of more than 1,024 KiB
_MOST_ROWS = 20
_MOST_REASONS = 10
_MOST_CHANGES = 10
_MOST_FOLDED = 1000
_MARKS = {PASSED: "✅", REGRESSION: "❌", WRONG_DATA: "❌", UNDECIDED: "❔"}
_LEFT_OUT = "The rest does not fit here: `collbench gate --verdict FILE` shows what `--out FILE` wrote."


def markdown(verdict: Verdict, room: int = LARGEST) -> str:
    """Return the whole text. Folded parts beyond `room` bytes are left out, with a note. Names and texts of the verdict are escaped."""
    lines = list(_first(verdict))
    size = sum(map(_size, lines)) + _size(_LEFT_OUT) + 1
    left_out = False
    for part in _folded(verdict):
        more = sum(map(_size, part))
        if size + more <= room:
            lines += part
            size += more
        else:
            left_out = True
    if left_out:
        lines += ["", _LEFT_OUT]
    return "\n".join(lines) + "\n"


def _size(line: str) -> int:
    return len(line.encode()) + 1


def _first(verdict: Verdict) -> Iterator[str]:
    """Yield the open part: result, reasons, what is slower, what changed."""
    yield f"## {_MARKS.get(verdict.result, '')} collbench gate: {escaped(headline(verdict))}"
    outcomes = texts.describe_outcomes(verdict)
    if outcomes:
        yield from ("", escaped_line(outcomes))
    if verdict.ceilings:
        yield from ("", *items(texts.fallen(verdict)[:_MOST_REASONS]))
    if verdict.cause is not None:
        yield from ("", f"Likely cause: {escaped(short(verdict.cause.render()))}")
    if verdict.reasons:
        yield from ("", *items(sentences(verdict.reasons, _MOST_REASONS)))
    slow = list(texts.open_ones(verdict))
    if slow:
        yield from ("", *_table(slow[:_MOST_ROWS]))
    if len(slow) > _MOST_ROWS:
        yield from ("", f"The first {_MOST_ROWS} of {len(slow)}, confirmed and worst first; all are below.")
    if verdict.changes:
        title = texts.changes_title(verdict)
        yield from ("", f"**{title[:1].upper()}{title[1:]}**, the most plausible cause first:", "")
        yield from items(of_change(change) for change in verdict.changes[:_MOST_CHANGES])
    yield from ("", escaped_line(judged(verdict)))


def _table(parts: Sequence[Part]) -> list[str]:
    return _markdown(texts.part_frame(parts, "time, by allocation"))


def _markdown(frame: Frame[Any]) -> list[str]:
    return [line.text for line in markdown_lines(frame)]


def _folded(verdict: Verdict) -> Iterator[list[str]]:
    """Yield the folded parts, each of which may be left out."""
    slow = list(texts.open_ones(verdict))
    cleared = texts.cleared(verdict)
    unknown = texts.unknown_floors(verdict)
    slow_names = {part.name for part in slow}
    groups = texts.worst_groups([group for group in verdict.groups if group.name not in slow_names])
    if groups:
        title = "Groups" if len(groups) == len(verdict.groups) else "Other groups"
        yield _details(f"{title} ({len(groups)})", _markdown(texts.group_frame(groups[:_MOST_FOLDED], "time, by allocation")), len(groups))
    if len(slow) > _MOST_ROWS:
        yield _details("All slower cases and groups", _table(slow[:_MOST_FOLDED]), len(slow))
    if cleared:
        yield _details(f"Cleared: not slower again ({len(cleared)})", _table(cleared[:_MOST_FOLDED]), len(cleared))
    if unknown:
        shares = [(name_of(floor), of(floor)) for floor in unknown[:_MOST_FOLDED]]
        table = markdown_table(("case", "percentage"), shares, [False] * 2)
        yield _details(f"Percentage of the expected bandwidth unknown ({len(unknown)})", table, len(unknown))
    if len(verdict.changes) > _MOST_CHANGES:
        yield _details("All changes", items(of_change(change) for change in verdict.changes[:_MOST_FOLDED]), len(verdict.changes))
    if verdict.notes or len(verdict.reasons) > _MOST_REASONS:
        more = [*verdict.reasons[_MOST_REASONS:], *verdict.notes]
        yield _details(f"Notes ({len(more)})", items(sentences(more, _MOST_FOLDED)), len(more))


def _details(title: str, lines: Iterable[str], number: int) -> list[str]:
    more = [] if number <= _MOST_FOLDED else ["", f"The first {_MOST_FOLDED} of {number}."]
    return ["", f"<details><summary>{title}</summary>", "", *lines, *more, "", "</details>"]


_LONGEST = 200
_BY_STRIKE = ", by strike: 1 is the first allocation that was judged"
GATE_METRICS = {
    "gate_result": Metric("", "1 for the result of the gate: passed, regression, no_verdict or wrong_data; 0 for the others"),
    "gate_judged_timestamp": Metric("seconds", "day of the verdict, in seconds since 1970"),
    "gate_baseline_allocations": Metric.of(Verdict, "allocations"),
    "gate_candidate_allocations": Metric("", "allocations that were judged"),
    "gate_cells": Metric.of(Verdict, "cells"),
    "gate_suspicions": Metric("", "cases, groups and --min-percent shares that are confirmed, suspected, accepted or cleared"),
    "gate_unannounced_changes": Metric("", "unexpected changes since the last good allocation"),
    "gate_group_state": Metric("", "1 for the state of a group: passed, confirmed, suspected or no_verdict; 0 for the others"),
    "gate_group_time": Metric.of(verdicts.GroupState, "factors", _BY_STRIKE),
    "gate_group_limit": Metric.of(verdicts.GroupState, "limit", "; no sample where a group is too small to be judged as one"),
    "gate_group_missing_cells": Metric.of(verdicts.GroupState, "missing"),
    "gate_suspicion_time": Metric.of(verdicts.Suspicion, "factors", _BY_STRIKE),
    "gate_suspicion_limit": Metric.of(verdicts.Suspicion, "limit"),
    "gate_of_ceiling": Metric.of(verdicts.FloorState, "percents", ", by strike"),
    "gate_of_ceiling_wanted": Metric.of(verdicts.FloorState, "wanted"),
}
_Labels = Mapping[str, str]


def openmetrics(verdict: Verdict) -> str:
    """Return the whole file."""
    return exposed(GATE_METRICS, gate_samples(verdict))


def gate_samples(verdict: Verdict) -> Iterator[Sample]:
    """Yield the metrics of a verdict (of `GATE_METRICS`)."""
    yield from _one_hot("gate_result", {}, "result", EXIT_CODES, verdict.result)
    day = None
    with suppress(ValueError):
        day = datetime.fromisoformat(verdict.judged_on).replace(tzinfo=UTC).timestamp()
    yield Sample("gate_judged_timestamp", {}, day)
    yield from column_samples(GATE_METRICS, verdict, {})
    yield Sample("gate_candidate_allocations", {}, len(verdict.candidates))
    for state in (CONFIRMED, SUSPECTED, ACCEPTED, CLEARED):
        yield Sample("gate_suspicions", {"state": state}, verdict.count(state))
    yield Sample("gate_unannounced_changes", {}, sum(change.announced is None for change in verdict.changes))
    for group in verdict.groups:
        labels = {name: short(str(getattr(group, name)), _LONGEST) for name in ("backend", "operation", "size_class")}
        yield from _one_hot("gate_group_state", labels, "state", (PASSED, CONFIRMED, SUSPECTED, UNDECIDED), group.state)
        yield from column_samples(GATE_METRICS, group, labels)
    for suspicion in verdict.suspicions:
        name = short(suspicion.name, _LONGEST)
        labels = {"kind": suspicion.kind, "name": name, "state": suspicion.state, **_case(suspicion)}
        yield from column_samples(GATE_METRICS, suspicion, labels)
    for floor in verdict.floors:
        labels = {"name": short(floor.name, _LONGEST), "asked": short(floor.asked, _LONGEST), "state": floor.state}
        for name in ("model", "limited_by"):
            text = getattr(floor, name)
            if text is not None:
                labels[name] = short(text, _LONGEST)
        yield from column_samples(GATE_METRICS, floor, labels | _case(floor))


def _case(part: verdicts.Suspicion | verdicts.FloorState) -> dict[str, str]:
    """Return its columns as labels, as in the metrics of a report; other names in the file are ignored."""
    labels = {name: part.case[name] for name in COLUMNS if part.case.get(name) is not None}
    placing = {True: "in place", False: "out of place"}.get(labels.pop("in_place", None))
    if placing:
        labels["placing"] = placing
    return {name: short(str(value), _LONGEST) for name, value in labels.items()}


def _one_hot(name: str, labels: _Labels, label: str, states: Iterable[str], state: str) -> Iterator[Sample]:
    for possible in states:
        yield Sample(name, {**labels, label: possible.replace(" ", "_")}, possible == state)
