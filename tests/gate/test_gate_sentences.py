"""The gate: reasons and notes of verdicts, plausible causes, and the outputs of a verdict."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
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
from tests.helpers import Call, said
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
WORDS: dict[str, tuple[Call, str]] = {
    "floor, not valid": (lambda: read_floor("ring"),
        "--min-percent ring: not valid (use MODEL:PERCENT@SIZES, such as ring:75@1G- or hard:40@1G-/allreduce+nccl)"),
    "floor, unknown model": (lambda: read_floor("rings:80@64M-"),
        "--min-percent rings:80@64M-: unknown model 'rings': choose from ring, hard, network, measured, given, simulated"),
    "floor, percentage": (lambda: read_floor("ring:800@64M-"),
        "--min-percent ring:800@64M-: '800' is not a percentage above 0 and up to 100"),
    "terminal, passed": (printed(partial(lines, verdict())),
        "passed\n"
        "judged: new; baseline base: 6 allocations, 6 cases"),
    "terminal, regression": (printed(partial(lines, regression())),
        "regression: 2 confirmed, 1 accepted\n"
        "likely cause: the link: large messages are 1.12 times slower on mpi and nccl, small ones are not\n"
        "  allocation night-9 lacks allreduce 8 B mpi: a missing case never passes\n"
        "slower, by allocation, with the limit that chance explains; confirmed and worst first:\n"
        "  confirmed  allreduce 64 MiB mpi  +12.0 %, +11.0 %, +13.0 % (limit +2.0 %)\n"
        "  confirmed  allreduce 64 MiB mpi  71.0 %, 70.5 %, 72.0 % of ring (NIC 4×100 Gb/s), required: 80 % (ring:80@64M-)\n"
        "  accepted   allreduce 8 B nccl    +4.0 %, –, – (limit +2.0 %); announced by A. Reviewer until 2027-01-31: fewer CTAs leave "
        "room for kernels\n"
        "  cleared (not slower again): allreduce on mpi, large messages\n"
        "changes since the last good allocation, the most plausible cause first:\n"
        "  topology nic rate: 400 Gb/s → 360 Gb/s: all slower cases cross this link\n"
        "  software nccl: 2.29 → 2.30; announced by A. Reviewer until 2027-01-31: fewer CTAs leave room for kernels\n"
        "groups: 1 confirmed, 1 passed, 1 no verdict\n"
        "  confirmed   allreduce on mpi, large messages  +3.0 %, +0.0 %, +0.0 % (limit +1.0 %); worst: allreduce 64 MiB mpi +12.0 % "
        "(limit +2.0 %)\n"
        "  no verdict  broadcast on mpi, large messages  cases judged one by one; 3 of 10 cases missing\n"
        "--min-percent reached: ring:50@1M-\n"
        "judged: night-9, night-10, night-11; baseline base: 6 allocations, 6 cases\n"
        "note: allocation night-9: 1 of 5 launches ran in another machine state (its state probe differs from the baseline's by more "
        "than 20 %); left out"),
    "next, passed": (printed(partial(next_commands, verdict(thin=True, allocations=4), TYPED)),
        "next: add it to the baseline (it has 4, use at least 6):\n"
        "  collbench baseline add base night-8"),
    "next, suspects": (waiting(),
        "next: measure the suspects again in two fresh allocations, one command in each:\n"
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation new-again-1 --out new-again-1 --quiet\n"
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation new-again-2 --out new-again-2 --quiet\n"
        "and judge all together:\n"
        "  collbench gate --baseline base night-8 new-again-1 new-again-2 --confirm-suite confirm.toml"),
    "next, change": (waiting(changes=regression().changes[:1]),
        "next: if the change is intended, announce it in changes.toml:\n"
        "  [[change]]\n"
        '  kind = "topology"\n'
        '  what = "nic rate"\n'
        '  reason = "WHY IT IS EXPECTED"\n'
        '  reviewer = "YOUR NAME"\n'
        "  expires = 2026-12-21\n"
        "and judge again:\n"
        "  collbench gate --baseline base night-8 --expect changes.toml\n"
        "next: measure the suspects again in two fresh allocations, one command in each:\n"
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation new-again-1 --out new-again-1 --quiet\n"
        "  collbench run confirm.toml --ranks 2 --launches 5 --allocation new-again-2 --out new-again-2 --quiet\n"
        "and judge all together:\n"
        "  collbench gate --baseline base night-8 new-again-1 new-again-2 --confirm-suite confirm.toml"),
    "next, short baseline": (waiting(allocations=3),
        "next: add more good allocations:\n"
        "  collbench baseline add base RUN…"),
    "next, regression": (printed(partial(next_commands, regression(), TYPED)),
        "next: write it as a page:\n"
        "  collbench gate --baseline base night-8 --html gate.html"),
    "next, wrong data": (printed(partial(next_commands, verdict(result="wrong data"), TYPED)),
        "next: show the cases with wrong data:\n"
        "  collbench report night-8"),
    "nagios": (printed(partial(status_lines, regression())),
        "COLLBENCH CRITICAL - regression: 2 confirmed, 1 accepted; the link: large messages are 1.12 times slower on mpi and nccl, "
        "small ones are not; allreduce 64 MiB mpi +12.0 %, +11.0 %, +13.0 % (limit +2.0 %); allocation night-9 lacks allreduce 8 B "
        "mpi: a missing case never passes | confirmed=2;;0;0 suspected=0;0;;0 accepted=1;0;;0 groups=3;;;0 unknown_groups=1;;;0 "
        "cells=6;;;0 baseline_allocations=6;;;0"),
    "github": (printed(partial(annotation_lines, regression())),
        "::error title=collbench gate%3A regression::regression: 2 confirmed, 1 accepted; likely cause: the link: large messages are "
        "1.12 times slower on mpi and nccl, small ones are not; allocation night-9 lacks allreduce 8 B mpi: a missing case never "
        "passes; judged: night-9, night-10, night-11; baseline base: 6 allocations, 6 cases\n"
        "::error title=confirmed%3A allreduce 64 MiB mpi::+12.0 %25, +11.0 %25, +13.0 %25 (limit +2.0 %25)\n"
        "::error title=confirmed%3A allreduce 64 MiB mpi::71.0 %25, 70.5 %25, 72.0 %25 of ring (NIC 4×100 Gb/s), required: 80 %25 "
        "(ring:80@64M-)\n"
        "::warning title=no verdict%3A broadcast on mpi%2C large messages::cases judged one by one; 3 of 10 cases missing\n"
        "::warning title=collbench gate%3A reason::allocation night-9 lacks allreduce 8 B mpi: a missing case never passes\n"
        "::notice title=accepted%3A allreduce 8 B nccl::+4.0 %25, –, – (limit +2.0 %25); announced by A. Reviewer until 2027-01-31: "
        "fewer CTAs leave room for kernels\n"
        "::notice title=change since the last good allocation::topology nic rate: 400 Gb/s → 360 Gb/s: all slower cases cross this "
        "link\n"
        "::notice title=change since the last good allocation::software nccl: 2.29 → 2.30; announced by A. Reviewer until "
        "2027-01-31: fewer CTAs leave room for kernels\n"
        "::notice title=collbench gate%3A note::allocation night-9: 1 of 5 launches ran in another machine state (its state probe "
        "differs from the baseline's by more than 20 %25); left out"),
    "baseline, missing": (lambda: load(Path("nowhere")),
        "nowhere is not a baseline (No such file or directory): make one with `collbench baseline add`"),
    "baseline, empty": (stored(lambda lines: []),
        "base/good-0.allocation.jsonl cannot be read (its first line has no schema): restore it, or drop it"),
    "baseline, newer": (head(schema=2),
        "base/good-0.allocation.jsonl cannot be read (it was written by a newer collbench (schema 2, this one knows 1): update): "
        "restore it, or drop it"),
    "baseline, another name": (head(name="night-2"),
        "base/good-0.allocation.jsonl cannot be read ('name' in its first line is 'night-2'): restore it, or drop it"),
    "baseline, invalid start": (head(began_utc="soon"),
        "base/good-0.allocation.jsonl cannot be read ('began_utc' in its first line is 'soon'): restore it, or drop it"),
    "baseline, launches and probes": (head(launches=4),
        "base/good-0.allocation.jsonl cannot be read (it has 4 launches but 3 state probes): restore it, or drop it"),
    "baseline, no case": (stored(lambda lines: lines[:1]),
        "base/good-0.allocation.jsonl cannot be read (it has no case): restore it, or drop it"),
    "baseline, not a case": (stored(lambda lines: [lines[0], "[1]", *lines[2:]]),
        "base/good-0.allocation.jsonl cannot be read (line 2 is not a case): restore it, or drop it"),
    "baseline, impossible case": (stored(lambda lines: [lines[0], lines[1].replace("nccl", "\\u001b"), *lines[2:]]),
        "base/good-0.allocation.jsonl cannot be read (line 2 has impossible figures): restore it, or drop it"),
    "baseline, repeated case": (stored(lambda lines: [*lines, lines[1]]),
        "base/good-0.allocation.jsonl cannot be read (1 of its lines repeat a case): restore it, or drop it"),
    "baseline, in it already": (added(allocation("good-0")), "allocation good-0 is already in base: drop it there first"),
    "baseline, one job": (added(allocation("good-1", launches=4, jobs=("Slurm job testbed-12",))),
        "base: good-0 and good-1 are both of Slurm job testbed-12, so they are one allocation: measure each in its own job"),
    "baseline, wrong data": (added(replace(allocation("bad"), cases={case(8): CaseTimes((1e-6,), wrong=3)})),
        "allocation bad has 3 wrong elements, so it is not a valid baseline; omit it"),
    "baseline, unfinished": (added(replace(allocation("torn"), unfinished=1)),
        "allocation torn has 1 launch that stopped early: repeat what stopped, or name the other launches one by one"),
    "baseline, slowed": (added(replace(allocation("slow"), slowed="by=10%")),
        "allocation slow was slowed on purpose (by=10%): it does not show the cluster's speed; omit it"),
    "baseline, imported": (added(replace(allocation("other"), imported=True)),
        "base: other was imported and good-0 measured here: keep them in two baselines"),
    "allocation, of no name": (runs("", ""), "base has launches without an allocation name: measure them again with --allocation NAME"),
    "allocation, not a file name": (runs("../x"),
        "base/launch-1: allocation name '../x' is not a valid file name: measure with another --allocation NAME"),
    "allocation, imported in part": (lambda: allocations_in([store(FOLDER / "night", [make_row(8, flags=("imported",)), make_row(1024)])]),
        "base/night: some of its allocation's rows are imported, others measured here: give them two names"),
    "candidate, in the baseline": (lambda: judged(allocation("good-3")),
        "allocation good-3 is in the baseline base: drop it there first to judge it"),
    "candidate, in the baseline under another name": (lambda: judged(
        copied("new"), baseline=Baseline(Path("base"), [copied("good-0"), *BASE.allocations[1:]])
    ), "allocation new is in the baseline base as good-0: drop it there first to judge it"),
    "candidate, one name twice": (lambda: judged(slow("a"), slow("b"), slow("b")),
        "two of the candidate's allocations have the same name: measure with another --allocation NAME"),
    "candidate, one allocation twice": (lambda: judged(copied("a"), replace(copied("b"), began_utc="2026-11-20T11:00:00+01:00")),
        "a and b are one allocation under two names: measure a fresh one"),
    "candidate, nothing in common": (lambda: judged(replace(allocation("new"), cases={case(5): CaseTimes((1e-6,))})),
        "allocation new and base have no case in common: measure the same suite"),
    "candidate, imported": (lambda: judged(replace(allocation("new"), imported=True)),
        "allocation new was imported and the baseline base was measured here: their statistics differ; compare like with like"),
    "floor, no such case": (lambda: floor_states([read_floor("ring:80@1G-")], [allocation("night-1")]),
        "--min-percent ring:80@1G-: allocation night-1 has no such case; measure those sizes, or change it"),
    "announcement of every change": (lambda: read_expected(written("expected.toml", EVERY_CHANGE)),
        "--expect expected.toml, change 1: kind '*' and what '*' match every change: be more specific"),
    "verdict, unknown result": (read_back(result="fine"),
        '--verdict verdict.json does not fit verdict.schema.json: result is "fine", where enum ["passed", "regression", "no '
        'verdict", "wrong data"] is wanted; name what `collbench gate --out` wrote'),
    "verdict, unknown field": (read_back(surprise=1),
        '--verdict verdict.json does not fit verdict.schema.json: it has "surprise", which is unknown; name what `collbench '
        "gate --out` wrote"),
    "verdict, passed with suspects": (read_back(result="passed", exit_code=0),
        "--verdict verdict.json has result passed, but also reasons or suspects: name what `collbench gate --out` wrote"),
    "verdict, newer": (read_back(schema=2),
        "--verdict verdict.json has schema 2, but this collbench supports up to 1: update collbench"),
    "history, missing": (history_of(lambda folder: None),
        "base cannot be read (No such file or directory): name a baseline, or a folder that holds runs"),
    "history, nothing in it": (history_of(lambda folder: folder.mkdir()),
        "base holds neither allocations of a baseline nor runs: name such a folder"),
    "history, short": (history_of(lambda folder: [launch(folder / name, {8: 1e-6}, name) for name in "ab"]),
        "2 allocations: a change is detected with at least 6, 3 before it and 3 after"),
    "history, wrong data": (history_of(lambda folder: launch(folder / "a", {8: 1e-6}, "a", wrong=3)),
        "a: wrong data\n"
        "1 allocation: a change is detected with at least 6, 3 before it and 3 after"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(call) == text
