"""The gate's verdict as text: its parts in words, the terminal output, and the commands to type next."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from itertools import count, islice
from pathlib import Path
from shlex import quote

import msgspec
from msgspec.structs import replace

from collbench.analysis.ceilings import ceiling_sentences
from collbench.analysis.outcome import Outcome, count_outcomes
from collbench.errors import UsageError
from collbench.gating import verdict as verdicts
from collbench.gating.confirm import HEADER
from collbench.gating.paired import STACK
from collbench.gating.reasons import LaunchesNeeded
from collbench.gating.rule import CONFIRMATIONS, ENOUGH, FEWEST
from collbench.gating.verdict import ACCEPTED, CLEARED, CONFIRMED, PASSED, REGRESSION, SUSPECTED, UNDECIDED, WRONG_DATA, Verdict
from collbench.reason import CommandText, Fact
from collbench.report.cases import NOTHING
from collbench.report.frame import Column, Frame, Line, html_text, printable, table_lines
from collbench.report.headlines import short
from collbench.report.outcome_text import count_text, format_margin
from collbench.report.screen import wrapped
from collbench.report.writers import write_whole
from collbench.units import first_of, plural

# The suite that measures suspects again (--confirm-suite). It is written if there are suspects, and otherwise removed, so that an old suite
# is not measured again. Only files that the gate wrote are replaced or removed.


def write_suite(path: Path, suite: str | None, stays: bool = False) -> str | None:
    """Write `suite`; without one remove the file of an earlier gate, and return a message. Raises UsageError if it is another file.

    `stays`: keep the earlier file, since its cases were measured again without a verdict.
    """
    check_suite_path(path)
    if suite is not None:
        write_whole(path, suite, "--confirm-suite")
        return None
    if not path.is_file():
        return None
    if stays:
        return f"--confirm-suite {path} kept: without a verdict, its cases may need another measurement"
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"--confirm-suite {path}: cannot remove the suite of an earlier gate ({error.strerror}); remove it") from error
    return f"--confirm-suite {path} removed: it was written by an earlier gate, and nothing is suspected now"


def check_suite_path(path: Path) -> None:
    """Raise UsageError for an existing file that the gate did not write; a pipe or a device is fine."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return
        with path.open("rb") as file:
            begins = file.read(len(HEADER.encode())).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--confirm-suite {path}: cannot write ({error.strerror or error}); choose another file") from error
    if begins not in (HEADER, ""):
        raise UsageError(f"--confirm-suite {path} was not written by `collbench gate`, so it is not replaced: choose another file")


# A verdict's parts as text, the same in every output. All text is made printable and cut, since a verdict file may be hostile.

LONGEST_NAME = 120
_LONGEST = 400
_MOST_CANDIDATES = 6
_MOST_FACTORS = 8
_LEAST_MULTIPLE = 3.0  # a larger factor is not shown in percent
Part = verdicts.Suspicion | verdicts.FloorState | verdicts.GroupState


def headline(verdict: Verdict) -> str:
    """Return "regression: 1 confirmed, 2 suspected; most plausible cause: topology nic rate: 400 → 200 (unexpected change)"."""
    counts = describe_counts(verdict)
    result = f"{verdict.result}: {counts}" if counts else verdict.result
    change = verdict.unexpected_cause
    return result if change is None else f"{result}; most plausible cause: {short(change.sentence(), _LONGEST)} (unexpected change)"


def describe_counts(verdict: Verdict) -> str:
    """Return "1 confirmed, 2 suspected"; "" for none."""
    return ", ".join(f"{verdict.count(state)} {state}" for state in (CONFIRMED, SUSPECTED, ACCEPTED) if verdict.count(state))


def likely_cause(verdict: Verdict) -> list[str]:
    """Return "likely cause: the link: large messages are 1.1 times slower …" as the only sentence; none without a cause."""
    return [] if verdict.cause is None else [f"likely cause: {short(verdict.cause.render())}"]


def slower(factor: float | None) -> str:
    """Return how much longer it takes: "+12.0 %", from threefold on "×4.2"; a dash where that is unknown."""
    if factor is None:
        return NOTHING
    return f"×{factor:.3g}" if factor >= _LEAST_MULTIPLE else f"{100 * (factor - 1):+.1f} %"


def slower_in_each(factors: Sequence[float | None]) -> str:
    """Return "+12.0 %, +11.0 %, –", by allocation."""
    return first_of(map(slower, factors), _MOST_FACTORS)


def name_of(part: Part) -> str:
    """Return its name, printable and cut."""
    return short(part.name, LONGEST_NAME)


def of(part: Part) -> str:
    """Return the figures: "+12.0 %, +11.0 %, +13.0 % (limit +2.0 %)", and the announcement.

    Of a floor: "71.0 %, 70.5 % of ring (NIC 4×100 Gb/s), required: 80 % (ring:80@64M-)". Of a group:
    "+3.0 % (limit +1.0 %); worst: allreduce 64 MiB mpi +12.0 % (limit +2.0 %); 3 of 10 cases missing".
    """
    if isinstance(part, verdicts.FloorState):
        percents = [f"{percent:.1f} %" if percent is not None else NOTHING for percent in part.percents[:_MOST_FACTORS]]
        model = short(part.model, 40) if part.model is not None else "an unknown reference"
        limit = f" ({short(part.limited_by, 80)})" if part.limited_by is not None else ""
        return f"{', '.join(percents)} of {model}{limit}, required: {part.wanted:g} % ({short(part.asked, 60)})"
    figures = f"{slower_in_each(part.factors)} (limit {slower(part.limit)})"
    if isinstance(part, verdicts.Suspicion):
        return f"{figures}{_announced(part.announced)}"
    texts = [figures if part.limit is not None else "cases judged one by one"]
    if part.worst is not None:
        limit = "" if part.worst_limit is None else f" (limit {slower(part.worst_limit)})"
        texts.append(f"worst: {short(part.worst, LONGEST_NAME)} {slower(part.worst_factor)}{limit}")
    if part.missing:
        texts.append(f"{part.missing} of {plural(part.cases, 'case')} missing")
    return "; ".join(texts)


def of_change(change: verdicts.Change) -> str:
    """Return "software mpi: MPICH 4.3 → MPICH 5.0: all slower cases use it; announced by …"."""
    why = f": {short(change.plausible.render(), _LONGEST)}" if change.plausible is not None else ""
    return f"{short(change.sentence(), _LONGEST)}{why}{_announced(change.announced)}"


def changes_title(verdict: Verdict) -> str:
    """Return "changes since the last good allocation"; of paired stacks between the two."""
    return "changes from the old stack to the new one" if verdict.mode == "paired" else "changes since the last good allocation"


def describe_outcomes(verdict: Verdict) -> str:
    """Return "cases: 2 slower, 0 faster, 10 no change (limit inside ±5 %), 3 inconclusive; groups: …"; "" for an older verdict."""
    if not verdict.outcomes:
        return ""
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(verdict.margin)})"}
    groups = count_outcomes(Outcome(group.outcome) for group in verdict.groups if group.outcome)
    return f"cases: {count_text(verdict.outcomes, notes)}; groups: {count_text(groups, {})}"


def fallen(verdict: Verdict) -> list[str]:
    """Return a sentence for each ceiling that fell, as `compare` prints it."""
    return [short(text, _LONGEST) for text in ceiling_sentences(verdict.ceilings)]


def judged(verdict: Verdict) -> str:
    """Return "judged: night-9; baseline good: 6 allocations, 336 cases"; for paired stacks the old stack."""
    names = first_of((short(name, 80) for name in verdict.candidates), _MOST_CANDIDATES)
    if verdict.mode == "paired":
        return f"judged: {names}; old stack {short(verdict.baseline, 200)}: {plural(verdict.cases, 'case')} of both"
    thin = f" (thin: fewer than {ENOUGH})" if verdict.thin else ""
    contents = f"{plural(verdict.allocations, 'allocation')}{thin}, {plural(verdict.cases, 'case')}"
    return f"judged: {names}; baseline {short(verdict.baseline, 200)}: {contents}"


def sentences(texts: Sequence[Fact | str], most: int) -> list[str]:
    """Return the first of these texts or facts, printable and cut, and how many more there are."""
    shown = [short(str(text), _LONGEST) for text in texts[:most]]
    return [*shown, f"and {len(texts) - most} more: see --out FILE"] if len(texts) > most else shown


def open_ones(verdict: Verdict) -> Iterator[verdicts.Suspicion | verdicts.FloorState]:
    """Yield what is confirmed, suspected or accepted, in this order; all cases together before a part of them."""
    suspicions = sorted(verdict.suspicions, key=lambda suspicion: suspicion.kind != "whole")
    parts: list[verdicts.Suspicion | verdicts.FloorState] = [*suspicions, *verdict.floors]
    for state in (CONFIRMED, SUSPECTED, ACCEPTED):
        yield from (part for part in parts if part.state == state)


def worst_groups(groups: Sequence[verdicts.GroupState]) -> list[verdicts.GroupState]:
    """Return confirmed groups first, then suspected and undecided ones, then those that passed; in each state the worst first."""

    def beyond(group: verdicts.GroupState) -> float:
        """Return by what factor its median, or its worst case where cases are judged one by one, exceeds its limit; 0 if unknown."""
        factor = group.worst_factor
        limit = group.worst_limit
        if group.limit:
            factor = group.factors[0] if group.factors else None
            limit = group.limit
        return factor / limit if factor and limit else 0.0

    return sorted(groups, key=lambda group: (group.state == PASSED, group.state != CONFIRMED, -beyond(group)))


def cleared(verdict: Verdict) -> list[verdicts.Suspicion]:
    """Return what exceeded its limit at first, but not again."""
    return [suspicion for suspicion in verdict.suspicions if suspicion.state == CLEARED]


def unknown_floors(verdict: Verdict) -> list[verdicts.FloorState]:
    """Return the cases with an unknown share of the expected bandwidth."""
    return [floor for floor in verdict.floors if floor.state == UNDECIDED]


def announced(by: verdicts.Announcement | None) -> str:
    """Return "by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels"; "" without an announcement."""
    return "" if by is None else f"by {short(by.reviewer, 60)} until {short(by.expires, 10)}: {short(by.reason, 200)}"


def _announced(announcement: verdicts.Announcement | None) -> str:
    return "" if announcement is None else f"; announced {announced(announcement)}"


# The terminal output, on one screen: result, likely cause, suspects, changes, groups.

_MOST_REASONS = 8
_MOST_OPEN = 12
_MOST_CHANGES = 6
_MOST_GROUPS = 6
_MOST_UNKNOWN = 4
_MOST_NOTES = 5
_COLUMNS: tuple[Column[Part], ...] = (
    Column("", "", lambda part: f"  {part.state}"),
    Column("", "", name_of, cut=True),
    Column("", "", of, wrap=True),
)


def lines(verdict: Verdict, width: int | None = None) -> Iterator[Line]:
    """Yield the verdict within `width` columns, the most important first."""
    return wrapped(_parts(verdict, width), width)


def _parts(verdict: Verdict, width: int | None) -> Iterator[Line]:
    yield from (Line(text, "head") for text in (headline(verdict), describe_outcomes(verdict)) if text)
    yield from (Line(text, "wrong") for text in fallen(verdict)[:_MOST_REASONS])
    yield from (Line(text, "head") for text in likely_cause(verdict))
    style = "wrong" if verdict.result != PASSED else ""
    yield from (Line(f"  {text}", style) for text in sentences(verdict.reasons, _MOST_REASONS))
    not_passed = [group for group in verdict.groups if group.state != PASSED]  # below, with their worst cases
    listed = {group.name for group in not_passed}
    slow = [
        part
        for part in open_ones(verdict)
        if not (isinstance(part, verdicts.Suspicion) and part.kind == "group" and part.name in listed and part.announced is None)
    ]
    if slow:
        yield Line("slower, by allocation, with the limit that chance explains; confirmed and worst first:", "head")
        yield from _table(slow, _MOST_OPEN, width)
    if cleared(verdict):
        yield Line(f"  cleared (not slower again): {first_of(map(name_of, cleared(verdict)), 3)}")
    yield from _table(unknown_floors(verdict), _MOST_UNKNOWN, width, " with an unknown percentage")
    if verdict.changes:
        yield Line(f"{changes_title(verdict)}, the most plausible cause first:", "head")
        yield from (Line(f"  {of_change(change)}") for change in verdict.changes[:_MOST_CHANGES])
        yield from _more(verdict.changes, _MOST_CHANGES)
    if verdict.groups:
        counts = Counter(group.state for group in verdict.groups)
        yield Line(f"groups: {', '.join(f'{number} {short(state, 20)}' for state, number in counts.items())}", "head")
        yield from _table(worst_groups(not_passed), _MOST_GROUPS, width)
    if verdict.reached:
        yield Line(f"--min-percent reached: {', '.join(sentences(verdict.reached, _MOST_NOTES))}")
    yield Line(judged(verdict), "foot")
    yield from (Line(f"note: {text}", "foot") for text in sentences(verdict.notes, _MOST_NOTES))


def _table(parts: Sequence[Part], most: int, width: int | None, what: str = "") -> Iterator[Line]:
    """Yield the lines of the first parts, and how many more there are."""
    yield from table_lines(Frame(_COLUMNS, parts[:most], style=lambda part: "wrong" if part.state == CONFIRMED else "doubtful"), width)
    yield from _more(parts, most, what)


def _more(parts: Sequence[object], most: int, what: str = "") -> Iterator[Line]:
    if len(parts) > most:
        yield Line(f"  and {len(parts) - most} more{what}: see --out FILE")


# The verdict in a notebook.


def part_frame(parts: Sequence[Part], figures: str) -> Frame[Part]:
    """Return the table of suspicions, floors or groups. figures: the heading of what they take longer, by allocation."""
    columns = [Column[Part]("", "state", lambda part: short(part.state, 20)), Column("", "what", name_of), Column("", figures, of)]
    return Frame(columns, parts, style=lambda part: mark_of(part.state))


def group_frame(groups: Sequence[verdicts.GroupState], figures: str) -> Frame[verdicts.GroupState]:
    """Return the table of groups, with their outcomes and numbers of cases; figures: as of `part_frame`."""
    columns: list[Column[verdicts.GroupState]] = [
        Column("", "state", lambda group: short(group.state, 20)),
        Column("", "outcome", lambda group: group.outcome or NOTHING),
        Column("", "group", name_of),
        Column("", "cases", lambda group: str(group.cases), right=True),
        Column("", figures, of),
    ]
    return Frame(columns, groups, style=lambda group: mark_of(group.state))


def mark_of(state: str) -> str:
    """Return the style of a part on a page."""
    return {CONFIRMED: "wrong", PASSED: "", ACCEPTED: "", CLEARED: ""}.get(state, "doubtful")


def html_of_verdict(verdict: Verdict) -> str:
    """Return the verdict as HTML for a notebook: result and reasons, what is slower, the groups, and what changed."""
    head = [text for text in (headline(verdict), describe_outcomes(verdict)) if text]
    head += [*fallen(verdict), *likely_cause(verdict), *sentences(verdict.reasons, _MOST_REASONS)]
    foot = [f"change: {of_change(change)}" for change in verdict.changes[:_MOST_CHANGES]]
    foot += [judged(verdict), *(f"note: {text}" for text in sentences(verdict.notes, _MOST_NOTES))]
    slow = replace(part_frame(list(open_ones(verdict)), "slower"), head=head)
    groups = replace(part_frame(worst_groups(verdict.groups), "slower"), title="groups" if verdict.groups else "", foot=foot)
    return f"{html_text(slow)}\n{html_text(groups)}"


# The commands to type next.

_LAUNCHES = 5
_DAYS = 30  # until an announcement expires
_LONGEST_FOLDER = 90
_PLACING = ("--ranks", "-g", "--gpus-per-process", "--ranks-per-node")  # options with the number of ranks of a start without a launcher
_EXPECT = "changes.toml"
_MORE = "more-changes.toml"
_SUITE = "confirm.toml"
_ABOUT_TEMPLATE = """\
# Unexpected changes, for `collbench gate --expect FILE`. Remove the tables of changes that are not intended, and complete "reason" and
# "reviewer" of the others. "kind" and "what" are patterns: * matches anything.
"""


class GateCommand(msgspec.Struct, frozen=True):
    """The gate's command line, and how the candidate was measured.

    baseline, runs  as typed; besides: the other arguments that judge (--expect FILE …)
    suite     where the suite of the suspects was written; None: nowhere
    nameable  whether a suite can describe any of them
    html      whether a page was written
    imported  whether another tool measured the candidate, which no suite repeats
    launcher  "local", "srun" …; None if it is unknown
    options   of the command that measured, as `facts` has them
    slowed    whether it was slowed on purpose, so that no baseline takes it
    commands  by allocation the arguments that measured it, from `arguments_of`; none where they are unknown
    """

    baseline: Path
    runs: Sequence[Path]
    besides: Sequence[str]
    suite: Path | None
    nameable: bool
    html: bool
    imported: bool
    launcher: str | None
    options: Mapping[str, str]
    slowed: bool
    commands: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)

    def judge(self, *more: str) -> str:
        """Return the same gate with more arguments."""
        return _command("gate", "--baseline", str(self.baseline), *map(str, self.runs), *more, *self.besides)


def next_commands(verdict: Verdict, typed: GateCommand, width: int | None = None) -> Iterator[Line]:
    """Yield lines that begin with "next:", and indented commands, never wrapped; none where the reasons give the remedy."""
    for text in _texts(verdict, typed):
        if isinstance(text, CommandText):
            yield Line(short(text, 4000))
        else:
            yield from wrapped([Line(short(text, 4000), "head")], width)


def _step(purpose: str, *commands: str) -> list[str]:
    """Return what the next commands do, and each command."""
    return [f"{purpose}:", *(CommandText(f"  {command}") for command in commands)]


def _texts(verdict: Verdict, typed: GateCommand) -> Iterator[str]:
    waiting = verdict.count(SUSPECTED) > 0 and len(verdict.candidates) < CONFIRMATIONS
    unexpected = unexpected_changes(verdict)
    if verdict.result == PASSED:
        if len(verdict.candidates) == 1 and not typed.slowed:  # the later ones of three may hold suspects alone
            reason = f" (it has {verdict.allocations}, use at least {ENOUGH})" if verdict.thin else ""
            command = _command("baseline", "add", str(typed.baseline), *map(str, typed.runs))
            yield from _step(f"next: add it to the baseline{reason}", command)
    elif verdict.result == WRONG_DATA:
        yield from _step("next: show the cases with wrong data", _command("report", *map(str, typed.runs)))
    elif verdict.result == REGRESSION:
        if not typed.html:
            yield from _step("next: write it as a page", typed.judge("--html", "gate.html"))
    elif verdict.allocations < FEWEST:
        yield from _step("next: add more good allocations", f"{_command('baseline', 'add', str(typed.baseline))} RUN…")
    elif unexpected:
        yield from _announcing(verdict, typed, unexpected)
        if waiting:
            yield from _again(verdict, typed)
    elif waiting and verdict.waits:
        yield from _again(verdict, typed)
    else:
        yield from _replacing(verdict, typed)


def arguments_of(options: Mapping[str, str]) -> list[str]:
    """Return the arguments of the measuring command, from the options of `facts`; empty if their boundaries are unknown."""
    if "command" not in options:
        return []
    words = options["command"].split(" ")
    for name, value in options.items():
        if name == "command":
            continue
        if not value or " " in value:
            return []
        words += [name] if value == "given" else [name, value]
    return words


def _replacing(verdict: Verdict, typed: GateCommand) -> Iterator[str]:
    """Yield commands for launches that replace those in another machine state."""
    lacking = [reason for reason in verdict.reasons if isinstance(reason, LaunchesNeeded) and typed.commands.get(reason.allocation)]
    if typed.slowed or not lacking:
        return
    added: list[str] = []
    for reason in lacking:
        name = reason.allocation
        added += _fresh_names(name, 1)
        while_it_runs = "" if typed.launcher in (None, "local") else ", in the same job"
        command = _started([*typed.commands[name], "--allocation", name, "--quiet", "--out"], added[-1], reason.more, typed)
        yield from _step(f"next: measure {plural(reason.more, 'more launch')} in {name}{while_it_runs}", command)
    yield from _step("and judge all together", typed.judge(*added))


def unexpected_changes(verdict: Verdict) -> list[verdicts.Change]:
    """Return the changes without an announcement; of two stacks side by side only those that do not belong to the stacks."""
    expected_kinds = STACK if verdict.mode == "paired" else ()
    return [change for change in verdict.changes if change.announced is None and change.kind not in expected_kinds]


def expect_template(verdict: Verdict) -> str | None:
    """Return a table [[change]] for each unexpected change, without reason and reviewer; None if there is no such change."""
    unexpected = unexpected_changes(verdict)
    if not unexpected:
        return None
    tables = ["\n".join([f"# {printable(change.sentence())}", *_announcement(verdict, change)]) for change in unexpected]
    return "\n\n".join([_ABOUT_TEMPLATE.rstrip(), *tables]) + "\n"


def _announcement(verdict: Verdict, change: verdicts.Change, reason: str = "", reviewer: str = "") -> list[str]:
    """Return the lines of a table [[change]]; kind and what are patterns, so special characters are escaped."""
    expires = date.fromisoformat(verdict.judged_on) + timedelta(_DAYS)
    texts = {"kind": change.kind.replace("[", "[[]"), "what": change.what.replace("[", "[[]"), "reason": reason, "reviewer": reviewer}
    lines = [f"{name} = {json.dumps(text, ensure_ascii=False)}" for name, text in texts.items()]
    return ["[[change]]", *lines, f"expires = {expires.isoformat()}"]


def _announcing(verdict: Verdict, typed: GateCommand, unexpected: Sequence[verdicts.Change]) -> Iterator[str]:
    """Yield a table to edit, or the command that writes all of several tables."""
    is_first = "--expect" not in typed.besides
    if len(unexpected) == 1:
        table = _announcement(verdict, unexpected[0], "WHY IT IS EXPECTED", "YOUR NAME")
        yield from _step(f"next: if the change is intended, announce it in {_EXPECT}", *table)
    else:
        template = _EXPECT if is_first else _MORE
        purpose = f"next: if the {len(unexpected)} changes are intended, write a table for each to {template}, and complete them"
        yield from _step(purpose, typed.judge("--expect-template", template))
    if is_first:
        yield from _step("and judge again", typed.judge("--expect", _EXPECT))


def _again(verdict: Verdict, typed: GateCommand) -> Iterator[str]:
    """Yield commands that measure the suspects in fresh allocations and judge all together."""
    if typed.imported or not typed.nameable:
        return
    if typed.suite is None:
        yield from _step("next: write a suite of the suspects", typed.judge("--confirm-suite", _SUITE))
        return
    more = CONFIRMATIONS - len(verdict.candidates)
    names = _fresh_names(verdict.candidates[0], more)
    where = "one more fresh allocation" if more == 1 else "two fresh allocations, one command in each"
    yield from _step(f"next: measure the suspects again in {where}", *(_measured(name, typed) for name in names))
    yield from _step("and judge all together", typed.judge(*names, "--confirm-suite", str(typed.suite)))


def _fresh_names(first: str, more: int) -> list[str]:
    """Return names of folders that do not exist here."""
    names = (f"{first[:_LONGEST_FOLDER]}-again-{number}" for number in count(1))
    return list(islice((name for name in names if not Path(name).exists()), more))


def _measured(name: str, typed: GateCommand) -> str:
    """Return the command for five launches; a Slurm job is an allocation by its number."""
    suite = str(typed.suite)
    if typed.launcher in (None, "local"):
        placing = [word for option in _PLACING if option in typed.options for word in (option, typed.options[option])]
        return _command("run", suite, *placing, "--launches", str(_LAUNCHES), "--allocation", name, "--out", name, "--quiet")
    allocation = [] if typed.launcher == "srun" else ["--allocation", name]
    return _started(["run", suite, *allocation, "--quiet", "--out"], name, _LAUNCHES, typed)


def _started(words: Sequence[str], folder: str, launches: int, typed: GateCommand) -> str:
    """Return the command for so many launches into a folder."""
    if typed.launcher in (None, "local"):
        option = ["--launches", str(launches)] if launches > 1 else []
        return _command(*words, folder, *option)
    start = {"mpirun": "mpirun …", "torchrun": "torchrun … -m"}.get(str(typed.launcher), typed.launcher)
    return f"for n in {' '.join(map(str, range(1, launches + 1)))}; do {start} {_command(*words)} {quote(folder)}/launch-$n; done"


def _command(*words: str) -> str:
    return " ".join(["collbench", *map(quote, words)])
