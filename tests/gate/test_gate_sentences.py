"""The gate: reasons and notes of verdicts, plausible causes, and the outputs of a verdict."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from collbench.gating import reasons
from collbench.gating.allocation import Allocation, CaseTimes, allocations_in
from collbench.gating.baseline import Baseline, add_all, load
from collbench.gating.conditions import floor_states, read_expected, read_floor
from collbench.gating.history import dated_in
from collbench.gating.verdict import UNDECIDED, read_verdict
from collbench.records import document
from collbench.report.frame import Line
from collbench.report.verdict import GateCommand, lines, next_commands
from collbench.report.verdict_formats import annotation_lines, status_lines
from collbench.results.store import to_page
from tests.gate.allocations import launch
from tests.gate.judging import BASE, allocation, case, judged, slow
from tests.gate.verdicts import regression, suspicion, verdict
from tests.helpers import SENTENCES, Call, check_sentences
from tests.results.rows import make_row, store

TYPED = GateCommand(Path("base"), [Path("night-8")], [], Path("confirm.toml"), True, False, False, "local", {"--ranks": "2"}, False)


def printed(made: Callable[[], Iterable[Line]]) -> Call:
    return lambda: "\n".join(line.text for line in made())


def waiting(**changes: object) -> Call:
    given = verdict(**{"result": UNDECIDED, "suspicions": (suspicion("suspected"),), "reasons": (reasons.StillSuspected(1, 2),), **changes})
    return printed(partial(next_commands, given, TYPED))


FOLDER = Path("base")  # in an empty working directory


def stored(change: Callable[[list[str]], list[str]]) -> Call:
    """Read a baseline with an altered file."""

    def run() -> object:
        (file,) = add_all(FOLDER, [allocation("good-0", launches=3)])
        file.write_text("\n".join(change(file.read_text().splitlines())))
        return load(FOLDER)

    return run


def head(**changes: object) -> Call:
    return stored(lambda lines: [json.dumps({**json.loads(lines[0]), **changes}), *lines[1:]])


def added(*allocations: Allocation) -> Call:
    """Add these to a baseline with good-0."""

    def run() -> object:
        add_all(FOLDER, [allocation("good-0", jobs=("Slurm job testbed-12",))])
        return add_all(FOLDER, allocations)

    return run


def written(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


def read_back(**changes: object) -> Call:
    """Read a stored verdict with these fields."""
    page = {**json.loads(to_page(document(regression()))), **changes}
    return lambda: read_verdict(written("verdict.json", json.dumps(page)), "--verdict")


def runs(*allocation_ids: str) -> Call:
    """Read launches of allocations with these names."""

    def run() -> object:
        for number, name in enumerate(allocation_ids, 1):
            launch(FOLDER / f"launch-{number}", {8: 1e-6}, name)
        return allocations_in([FOLDER])

    return run


def history_of(make: Callable[[Path], object]) -> Call:
    """Read the notes of a history that a function makes."""

    def run() -> object:
        make(FOLDER)
        return "\n".join(dated_in(FOLDER)[1])

    return run


def copied(name: str) -> Allocation:
    return replace(allocation(name), began_utc="2026-11-20T10:00:00Z")


EVERY_CHANGE = '[[change]]\nkind = "*"\nwhat = "*"\nreason = "x"\nreviewer = "ops"\nexpires = 2026-12-01\n'
WORDS: dict[str, Call] = {
    "floor, not valid": lambda: read_floor("ring"),
    "floor, unknown model": lambda: read_floor("rings:80@64M-"),
    "floor, percentage": lambda: read_floor("ring:800@64M-"),
    "terminal, passed": printed(partial(lines, verdict())),
    "terminal, regression": printed(partial(lines, regression())),
    "next, passed": printed(partial(next_commands, verdict(thin=True, allocations=4), TYPED)),
    "next, suspects": waiting(),
    "next, change": waiting(changes=regression().changes[:1]),
    "next, short baseline": waiting(allocations=3),
    "next, regression": printed(partial(next_commands, regression(), TYPED)),
    "next, wrong data": printed(partial(next_commands, verdict(result="wrong data"), TYPED)),
    "nagios": printed(partial(status_lines, regression())),
    "github": printed(partial(annotation_lines, regression())),
    "baseline, missing": lambda: load(Path("nowhere")),
    "baseline, empty": stored(lambda lines: []),
    "baseline, newer": head(schema=2),
    "baseline, another name": head(name="night-2"),
    "baseline, invalid start": head(began_utc="soon"),
    "baseline, launches and probes": head(launches=4),
    "baseline, no case": stored(lambda lines: lines[:1]),
    "baseline, not a case": stored(lambda lines: [lines[0], "[1]", *lines[2:]]),
    "baseline, impossible case": stored(lambda lines: [lines[0], lines[1].replace("nccl", "\\u001b"), *lines[2:]]),
    "baseline, repeated case": stored(lambda lines: [*lines, lines[1]]),
    "baseline, in it already": added(allocation("good-0")),
    "baseline, one job": added(allocation("good-1", launches=4, jobs=("Slurm job testbed-12",))),
    "baseline, wrong data": added(replace(allocation("bad"), cases={case(8): CaseTimes((1e-6,), wrong=3)})),
    "baseline, unfinished": added(replace(allocation("torn"), unfinished=1)),
    "baseline, slowed": added(replace(allocation("slow"), slowed="by=10%")),
    "baseline, imported": added(replace(allocation("other"), imported=True)),
    "allocation, of no name": runs("", ""),
    "allocation, not a file name": runs("../x"),
    "allocation, imported in part": lambda: allocations_in([store(FOLDER / "night", [make_row(8, flags=("imported",)), make_row(1024)])]),
    "candidate, in the baseline": lambda: judged(allocation("good-3")),
    "candidate, in the baseline under another name": lambda: judged(
        copied("new"), baseline=Baseline(Path("base"), [copied("good-0"), *BASE.allocations[1:]])
    ),
    "candidate, one name twice": lambda: judged(slow("a"), slow("b"), slow("b")),
    "candidate, one allocation twice": lambda: judged(copied("a"), replace(copied("b"), began_utc="2026-11-20T11:00:00+01:00")),
    "candidate, nothing in common": lambda: judged(replace(allocation("new"), cases={case(5): CaseTimes((1e-6,))})),
    "candidate, imported": lambda: judged(replace(allocation("new"), imported=True)),
    "floor, no such case": lambda: floor_states([read_floor("ring:80@1G-")], [allocation("night-1")]),
    "announcement of every change": lambda: read_expected(written("expected.toml", EVERY_CHANGE)),
    "verdict, unknown result": read_back(result="fine"),
    "verdict, unknown field": read_back(surprise=1),
    "verdict, passed with suspects": read_back(result="passed", exit_code=0),
    "verdict, newer": read_back(schema=2),
    "history, missing": history_of(lambda folder: None),
    "history, nothing in it": history_of(lambda folder: folder.mkdir()),
    "history, short": history_of(lambda folder: [launch(folder / name, {8: 1e-6}, name) for name in "ab"]),
    "history, wrong data": history_of(lambda folder: launch(folder / "a", {8: 1e-6}, "a", wrong=3)),
}


def test_the_words_of_messages() -> None:
    check_sentences(SENTENCES / "gate.txt", WORDS)
