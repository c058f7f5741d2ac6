"""What to type after a verdict: whole commands with the names at hand, to be copied from the last lines of the screen."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from shlex import quote

from collbench.analysis.ceilings import ceiling_sentences
from collbench.analysis.outcome import Outcome, count_outcomes
from collbench.errors import UsageError
from collbench.gate.allocation import counted
from collbench.gate.confirm import OURS
from collbench.gate.paired import STACK
from collbench.gate.rule import ENOUGH, FEWEST, STRIKES
from collbench.gate.verdict import (
    ACCEPTED,
    CLEARED,
    CONFIRMED,
    PASSED,
    REGRESSION,
    SUSPECTED,
    UNDECIDED,
    WRONG_DATA,
    Announcement,
    Change,
    FloorState,
    GroupState,
    Suspicion,
    Verdict,
)
from collbench.report.cells import NOTHING
from collbench.report.headlines import short
from collbench.report.outcome_text import count_text, format_margin
from collbench.report.writers import Line, write_whole
from collbench.results.store import plain

# The file of the suite that measures suspects again: written where there are some, and gone where there are none.
#
# A suite of an earlier night would be measured for suspects that nobody has. Only what the gate itself wrote is replaced or removed.


def write_suite(path: Path, suite: str | None, stays: bool = False) -> str | None:
    """Writes `suite`, or without one removes what an earlier gate left there and says so. Raises UsageError where the file is not ours.

    `stays`: it was measured again, but that is no verdict yet, and may have to be done once more.
    """
    check_ours(path)
    if suite is not None:
        write_whole(path, suite, "--confirm-suite")
        return None
    if not path.is_file():
        return None
    if stays:
        return f"--confirm-suite {path} stays as it is: there is no verdict yet, and what it measures may be wanted once more"
    try:
        path.unlink()
    except OSError as error:
        raise UsageError(f"--confirm-suite {path} is of an earlier gate and cannot be removed ({error.strerror}): remove it") from error
    return f"--confirm-suite {path} was removed: it was of an earlier gate, and there is nothing to measure again"


def check_ours(path: Path) -> None:
    """Raises UsageError where a file is there that the gate did not write; what is no regular file (a pipe) may be written to."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return
        with path.open("rb") as file:
            begins = file.read(len(OURS.encode())).decode(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"--confirm-suite {path} cannot be written ({error.strerror or error}): choose another file") from error
    if begins not in (OURS, ""):
        raise UsageError(f"--confirm-suite {path} was not written by `collbench gate`, and is not replaced: name another file")


# A verdict's parts in words, the same in every output. All of them are made printable and cut: a verdict may be a stranger's file.

LONGEST_NAME, _LONGEST = 120, 400
_MOST_CANDIDATES, _MOST_FACTORS, _HUGE = 6, 8, 3.0


def headline(verdict: Verdict) -> str:
    """ "regression: 1 confirmed, 2 suspected; most plausible cause: topology nic rate: 400 → 200 (unexpected change)"."""
    told = ", ".join(f"{number} {state}" for state in (CONFIRMED, SUSPECTED, ACCEPTED) if (number := verdict.count(state)))
    change = verdict.unexpected_cause
    cause = "" if change is None else f"; most plausible cause: {short(change.sentence(), _LONGEST)} (unexpected change)"
    return (f"{verdict.result}: {told}" if told else verdict.result) + cause


def slower(factor: float | None) -> str:
    """How much longer it takes: "+12.0 %", from threefold on "×4.2"; a dash where that is not known."""
    if factor is None:
        return NOTHING
    return f"×{factor:.3g}" if factor >= _HUGE else f"{100 * (factor - 1):+.1f} %"


def slower_in_each(factors: Sequence[float | None]) -> str:
    """ "+12.0 %, +11.0 %, –", by allocation."""
    more = f" and {len(factors) - _MOST_FACTORS} more" if len(factors) > _MOST_FACTORS else ""
    return ", ".join(map(slower, factors[:_MOST_FACTORS])) + more


def name_of(part: Suspicion | FloorState | GroupState) -> str:
    """What it is called."""
    return short(part.name, LONGEST_NAME)


def of_suspicion(each: Suspicion) -> str:
    """ "+12.0 %, +11.0 %, +13.0 %, by chance up to +2.0 %", and who announced it."""
    return f"{slower_in_each(each.factors)}, by chance up to {slower(each.limit)}{_by(each.announced)}"


def of_group(each: GroupState) -> str:
    """ "+3.0 %, by chance up to +1.0 %; worst: allreduce 64 MiB mpi +12.0 % (up to +2.0 %); 3 of 10 cells are missing"."""
    judged = f"{slower_in_each(each.factors)}, by chance up to {slower(each.limit)}" if each.limit is not None else "not judged as one"
    worst = "" if each.worst is None else f"worst: {short(each.worst, LONGEST_NAME)} {slower(each.worst_factor)}"
    limit = "" if each.worst is None or each.worst_limit is None else f" (up to {slower(each.worst_limit)})"
    missing = f"{each.missing} of {each.cells} cells are missing" if each.missing else ""
    return "; ".join(text for text in (judged, f"{worst}{limit}", missing) if text)


def of_floor(each: FloorState) -> str:
    """ "71.0 %, 70.5 % of ring (NIC 4×100 Gb/s), 80 % asked for (ring:80@64M-)"."""
    known = [f"{percent:.1f} %" if percent is not None else NOTHING for percent in each.percents[:_MOST_FACTORS]]
    of = short(each.model, 40) if each.model is not None else "a ceiling that is not known"
    limit = f" ({short(each.limited_by, 80)})" if each.limited_by is not None else ""
    return f"{', '.join(known)} of {of}{limit}, {each.wanted:g} % asked for ({short(each.asked, 60)})"


def of_change(each: Change) -> str:
    """ "software mpi: MPICH 4.3 → MPICH 5.0: it carries every slower cell; announced by …"."""
    why = f": {short(each.plausible, _LONGEST)}" if each.plausible else ""
    return f"{short(each.sentence(), _LONGEST)}{why}{_by(each.announced)}"


def describe_outcomes(verdict: Verdict) -> str:
    """Return "cells: 2 slower, 0 faster, 10 no change (limit inside ±5 %), 3 inconclusive; groups: …"; "" for an older verdict."""
    if not verdict.outcomes:
        return ""
    notes = {Outcome.NO_CHANGE: f" (limit inside {format_margin(verdict.margin)})"}
    groups = count_outcomes(Outcome(each.outcome) for each in verdict.groups if each.outcome)
    return f"cells: {count_text(verdict.outcomes, notes)}; groups: {count_text(groups, {})}"


def fallen(verdict: Verdict) -> list[str]:
    """Return a sentence for each ceiling that fell, as `compare` prints it."""
    return [short(text, _LONGEST) for text in ceiling_sentences(verdict.ceilings)]


def judged(verdict: Verdict) -> str:
    """ "judged: night-9; baseline good: 6 allocations, 336 cells with a history"; of paired stacks what they were set against."""
    names = [short(name, 80) for name in verdict.candidates[:_MOST_CANDIDATES]]
    more = f" and {len(verdict.candidates) - _MOST_CANDIDATES} more" if len(verdict.candidates) > _MOST_CANDIDATES else ""
    thin = " (a thin baseline: fewer than 6)" if verdict.thin else ""
    if verdict.mode == "paired":
        old = f"the old stack side by side, in {short(verdict.baseline, 200)}: {verdict.cells} cells of both"
        return f"judged: {', '.join(names)}{more}; {old}"
    of = f"{verdict.allocations} allocations{thin}, {verdict.cells} cells with a history"
    return f"judged: {', '.join(names)}{more}; baseline {short(verdict.baseline, 200)}: {of}"


def sentences(texts: Sequence[str], most: int) -> list[str]:
    """The first of them, made fit to be shown; what is left out is counted."""
    shown = [short(text, _LONGEST) for text in texts[:most]]
    return [*shown, f"and {len(texts) - most} more: see --out FILE"] if len(texts) > most else shown


def open_ones(verdict: Verdict) -> Iterator[Suspicion | FloorState]:
    """What is confirmed, suspected or accepted, in this order; all cells together before a part of them."""
    suspicions = sorted(verdict.suspicions, key=lambda each: each.kind != "whole")
    told: list[Suspicion | FloorState] = [*suspicions, *verdict.floors]
    for state in (CONFIRMED, SUSPECTED, ACCEPTED):
        yield from (each for each in told if each.state == state)


def worst_groups(groups: Sequence[GroupState]) -> list[GroupState]:
    """What is confirmed first, then what is not known or suspected, then what passed; of a state what exceeds its limit most first."""
    return sorted(groups, key=lambda each: (each.state == PASSED, each.state != CONFIRMED, -_beyond(each)))


def _beyond(each: GroupState) -> float:
    """By what factor its median, or where it is not judged as one its worst cell, exceeds its limit; 0 where nothing is known."""
    factor, limit = (each.factors[0] if each.factors else None, each.limit) if each.limit else (each.worst_factor, each.worst_limit)
    return factor / limit if factor and limit else 0.0


def cleared(verdict: Verdict) -> list[Suspicion]:
    """What exceeded its limit at first, and did not again."""
    return [each for each in verdict.suspicions if each.state == CLEARED]


def of(each: Suspicion | FloorState) -> str:
    """The figures of either."""
    return of_floor(each) if isinstance(each, FloorState) else of_suspicion(each)


def announced(by: Announcement | None) -> str:
    """ "by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels"; "" where nobody did."""
    return "" if by is None else f"by {short(by.reviewer, 60)} until {short(by.expires, 10)}: {short(by.reason, 200)}"


def _by(announcement: Announcement | None) -> str:
    return "" if announcement is None else f"; announced {announced(announcement)}"


# What the gate prints: the result, what points at what, who is suspected and by how much, what changed, the groups. One screen.

_MOST_REASONS, _MOST_OPEN, _MOST_CHANGES, _MOST_GROUPS, _MOST_UNKNOWN, _MOST_NOTES = 8, 12, 6, 6, 4, 5
_WIDEST = 44  # letters of a name's column


def json_line(verdict: Verdict) -> Line:
    """What verdict.json holds, on one line."""
    return Line(json.dumps(plain(verdict.as_json()), allow_nan=False))


def lines(verdict: Verdict) -> Iterator[Line]:
    """The verdict for whoever has to decide at 3 a.m.: what to do first, where it stands last."""
    bad = verdict.result != PASSED
    yield Line(headline(verdict), "head")
    if describe_outcomes(verdict):
        yield Line(describe_outcomes(verdict), "head")
    yield from (Line(text, "wrong") for text in fallen(verdict)[:_MOST_REASONS])
    if verdict.cause is not None:
        yield Line(f"points at {short(verdict.cause.sentence)}", "head")
    yield from (Line(f"  {text}", "wrong" if bad else "") for text in sentences(verdict.reasons, _MOST_REASONS))
    yield from _open(verdict)
    yield from _changes(verdict)
    yield from _groups(verdict)
    if verdict.reached:
        yield Line(f"reached: {', '.join(sentences(verdict.reached, _MOST_NOTES))}")
    yield Line(judged(verdict), "foot")
    yield from (Line(f"note: {text}", "foot") for text in sentences(verdict.notes, _MOST_NOTES))


def _open(verdict: Verdict) -> Iterator[Line]:
    told = list(open_ones(verdict))
    if told:
        yield Line("what takes longer, by allocation, and how much may be by chance; the surest and worst first:", "head")
        records = [(each.state, name_of(each), of(each)) for each in told[:_MOST_OPEN]]
        yield from _columns(records)
    if len(told) > _MOST_OPEN:
        yield Line(f"  and {len(told) - _MOST_OPEN} more: see --out FILE")
    again = cleared(verdict)
    if again:
        yield Line(f"  cleared, since they did not take longer again: {', '.join(name_of(each) for each in again[:3])}{_more(again, 3)}")
    yield from _unknown([each for each in verdict.floors if each.state == UNDECIDED])


def _unknown(floors: Sequence[FloorState]) -> Iterator[Line]:
    """Of what the share of the ceiling that was asked for is not known."""
    yield from _columns([(UNDECIDED, name_of(each), of_floor(each)) for each in floors[:_MOST_UNKNOWN]])
    if len(floors) > _MOST_UNKNOWN:
        yield Line(f"  and {len(floors) - _MOST_UNKNOWN} more of which the share of the ceiling is not known: see --out FILE")


def _changes(verdict: Verdict) -> Iterator[Line]:
    if verdict.changes:
        since = "what differs between the old stack and the new one" if verdict.mode == "paired" else "what changed since the last good one"
        yield Line(f"{since}, the most plausible cause first:", "head")
        yield from (Line(f"  {of_change(each)}") for each in verdict.changes[:_MOST_CHANGES])
        if len(verdict.changes) > _MOST_CHANGES:
            yield Line(f"  and {len(verdict.changes) - _MOST_CHANGES} more: see --out FILE")


def _groups(verdict: Verdict) -> Iterator[Line]:
    """How many there are of each state, and those that did not pass."""
    if not verdict.groups:
        return
    counts = Counter(each.state for each in verdict.groups)
    yield Line(f"groups: {', '.join(f'{number} {short(state, 20)}' for state, number in counts.items())}", "head")
    found = worst_groups([each for each in verdict.groups if each.state != PASSED])
    yield from _columns([(each.state, name_of(each), of_group(each)) for each in found[:_MOST_GROUPS]])
    if len(found) > _MOST_GROUPS:
        yield Line(f"  and {len(found) - _MOST_GROUPS} more: see --out FILE")


def _columns(records: Sequence[tuple[str, str, str]]) -> Iterator[Line]:
    """State, name and figures, each below the other."""
    first, second = (min(max((len(each[place]) for each in records), default=0), _WIDEST) for place in (0, 1))
    for state, name, figures in records:
        yield Line(f"  {state:{first}}  {name:{second}}  {figures}", "wrong" if state == CONFIRMED else "doubtful")


def _more(found: Sequence[object], shown: int) -> str:
    return f" and {len(found) - shown} more" if len(found) > shown else ""


_LAUNCHES, _DAYS, _LONGEST_NAME = 5, 30, 90
_PLACING = ("--ranks", "-g", "--gpus-per-process", "--ranks-per-node")  # how many ranks a start without a launcher makes
_MORE = re.compile(r"allocation (\S+): .*; measure (\d) launch(?:es)? more in it, and name them too", re.ASCII | re.DOTALL)
_EXPECT, _SUITE = "changes.toml", "confirm.toml"


@dataclass(frozen=True)
class Typed:
    """What was typed, and how the candidate was measured.

    baseline, runs  as they were named; besides: the other words that judge (--expect FILE …)
    suite     where the suite of the suspects was written; None: it was not asked for
    nameable  whether a suite can name any of them
    html      whether a page was asked for
    imported  whether another tool measured it: no suite makes that measure again
    launcher  "local", "srun" …; None where no run says it
    options   of the command that measured, as `facts` has them
    slowed    whether it was made slower on purpose: no baseline takes it
    commands  by allocation the words that measured it, as `words_of` has them; none where they are not known
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
    commands: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def judge(self, *more: str) -> str:
        """The same gate with more words, be they runs or options."""
        return _command("gate", "--baseline", str(self.baseline), *map(str, self.runs), *more, *self.besides)


def following(verdict: Verdict, typed: Typed) -> Iterator[Line]:
    """Lines that begin with "next:", and indented commands; none where the reasons say what there is to be done."""
    for text in _texts(verdict, typed):
        yield Line(short(text, 4000), "" if text.startswith("  ") else "head")


def _texts(verdict: Verdict, typed: Typed) -> Iterator[str]:
    waiting = verdict.count(SUSPECTED) > 0 and len(verdict.candidates) < STRIKES
    stack = STACK if verdict.mode == "paired" else ()  # these differ between two stacks as a matter of course
    meant = [each for each in verdict.changes if each.announced is None and each.kind not in stack]
    if verdict.result == PASSED:
        yield from _kept(verdict, typed)
    elif verdict.result == WRONG_DATA:
        yield from ("next: see in which cells:", f"  {_command('report', *map(str, typed.runs))}")
    elif verdict.result == REGRESSION:
        if not typed.html:
            yield from ("next: see it as a page:", f"  {typed.judge('--html', 'gate.html')}")
    elif verdict.allocations < FEWEST:
        yield "next: add the runs of other good allocations:"
        yield f"  {_command('baseline', 'add', str(typed.baseline))} RUN…"
    elif meant:
        yield from _announcing(verdict, typed, meant[0], len(meant))
        if waiting:
            yield from _again(verdict, typed)
    elif waiting and verdict.waits:
        yield from _again(verdict, typed)
    else:
        yield from _replacing(verdict, typed)


def words_of(options: Mapping[str, str]) -> list[str]:
    """What was typed to measure, of `facts`' options; nothing where that does not say how the words were parted."""
    if "command" not in options or any(not value or " " in value for name, value in options.items() if name != "command"):
        return []
    others = ((name, value) for name, value in options.items() if name != "command")
    return [*options["command"].split(" "), *(word for name, value in others for word in ([name] if value == "given" else [name, value]))]


def _replacing(verdict: Verdict, typed: Typed) -> Iterator[str]:
    """Launches in place of those during which the machine was in another state, for each allocation that lacks some."""
    lacking = [(told[1], int(told[2])) for reason in verdict.reasons if (told := _MORE.fullmatch(reason))]
    known = [(name, count, typed.commands[name]) for name, count in lacking if typed.commands.get(name)]
    if typed.slowed or not known:
        return
    added: list[str] = []
    for name, count, words in known:
        folder = _fresh_names(name, 1)[0]
        added.append(folder)
        while_it_runs = "" if typed.launcher in (None, "local") else ", in the same job"
        yield f"next: measure {counted(count, 'launch')} more in {name}{while_it_runs}:"
        yield f"  {_started([*words, '--allocation', name, '--quiet', '--out'], folder, count, typed)}"
    yield from ("and judge all together:", f"  {typed.judge(*added)}")


def _kept(verdict: Verdict, typed: Typed) -> Iterator[str]:
    """Of three allocations the later ones may hold suspects alone."""
    if len(verdict.candidates) == 1 and not typed.slowed:
        why = f" ({verdict.allocations} are few, {ENOUGH} sound)" if verdict.thin else ""
        yield f"next: to keep it among the good ones{why}:"
        yield f"  {_command('baseline', 'add', str(typed.baseline), *map(str, typed.runs))}"


def _announcing(verdict: Verdict, typed: Typed, change: Change, number: int) -> Iterator[str]:
    """A table ready to be edited: kind and what are patterns, so that what is special in one is made plain."""
    expires = date.fromisoformat(verdict.judged_on) + timedelta(_DAYS)
    each = "" if number == 1 else f", a table for each of the {number} (in kind and what * is anything)"
    yield f"next: if it was meant, announce it in {_EXPECT}{each}:"
    yield "  [[change]]"
    for name, text in (("kind", change.kind), ("what", change.what)):
        yield f"  {name} = {json.dumps(text.replace('[', '[[]'), ensure_ascii=False)}"
    yield from ('  reason = "WHY IT IS RIGHT"', '  reviewer = "WHO SAYS SO"', f"  expires = {expires.isoformat()}")
    if "--expect" not in typed.besides:
        yield from ("and judge again:", f"  {typed.judge('--expect', _EXPECT)}")


def _again(verdict: Verdict, typed: Typed) -> Iterator[str]:
    """The suspects in fresh allocations, and all judged together."""
    if typed.imported or not typed.nameable:
        return
    if typed.suite is None:
        yield from ("next: write the suite that measures the suspects alone:", f"  {typed.judge('--confirm-suite', _SUITE)}")
        return
    more = STRIKES - len(verdict.candidates)
    names = _fresh_names(verdict.candidates[0], more)
    where = "one more fresh allocation" if more == 1 else "two fresh allocations, one line in each"
    yield f"next: measure the suspects again in {where}:"
    yield from (f"  {_measured(name, typed)}" for name in names)
    yield from ("and judge all together:", f"  {typed.judge(*names, '--confirm-suite', str(typed.suite))}")


def _fresh_names(first: str, more: int) -> list[str]:
    """Names of folders here that nothing has."""
    found: list[str] = []
    number = 1
    while len(found) < more:
        name = f"{first[:_LONGEST_NAME]}-again-{number}"
        found += [name] if not Path(name).exists() else []
        number += 1
    return found


def _measured(name: str, typed: Typed) -> str:
    """Five launches: a launcher starts each, and a job of Slurm is an allocation by its number."""
    suite = str(typed.suite)
    if typed.launcher in (None, "local"):
        placing = [word for option in _PLACING if option in typed.options for word in (option, typed.options[option])]
        return _command("run", suite, *placing, "--launches", str(_LAUNCHES), "--allocation", name, "--out", name, "--quiet")
    allocation = [] if typed.launcher == "srun" else ["--allocation", name]
    return _started(["run", suite, *allocation, "--quiet", "--out"], name, _LAUNCHES, typed)


def _started(words: Sequence[str], folder: str, count: int, typed: Typed) -> str:
    """So many launches into a folder; a launcher starts each."""
    if typed.launcher in (None, "local"):
        return _command(*words, folder, *(["--launches", str(count)] if count > 1 else []))
    start = {"mpirun": "mpirun …", "torchrun": "torchrun … -m"}.get(str(typed.launcher), typed.launcher)
    return f"for n in {' '.join(map(str, range(1, count + 1)))}; do {start} {_command(*words)} {quote(folder)}/launch-$n; done"


def _command(*words: str) -> str:
    return " ".join(["collbench", *map(quote, words)])
