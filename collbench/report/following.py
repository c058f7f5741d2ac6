"""What to type after a verdict: whole commands with the names at hand, to be copied from the last lines of the screen."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path
from shlex import quote

from collbench.gate.allocation import counted
from collbench.gate.paired import STACK
from collbench.gate.rule import ENOUGH, FEWEST, STRIKES
from collbench.gate.verdict import PASSED, REGRESSION, SUSPECTED, WRONG_DATA, Change, Verdict
from collbench.report.headlines import short
from collbench.report.table import Line

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
