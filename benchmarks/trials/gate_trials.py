"""python -m benchmarks.trials.gate_trials FOLDER [KIND… [N]]   checks that `collbench gate` finds what became slower, and nothing else.

Interleaved seeded trials of these kinds (all of them; N of each, by default the numbers in KINDS):
    same    no defect                                                            -> no alarm
    cell    a cell, drawn, is slowed by 10 % (`--slowed`)                       -> it is found
    group   the large messages of a backend, drawn, are slowed by 5 %           -> the group is found
    link    the link gets nine tenths of its rate, at every other trial where the hosts see it (and it is announced)  -> named as the link
    twice   on shared memory a cell is slowed by twice the smallest slowdown that `baseline show` printed for it      -> it is found
    half    likewise by half of that                                            -> it is not
Over two hosts joined by 500 Mbit/s, `srun -N2`, and between two ranks on this host. The command line
measures and evaluates every allocation: five launches; suspects are measured again, by the gate's suite, in two new allocations.
Launches in another machine state (state probe) are replaced, two of an allocation at most. If more launches changed their state, the
allocation is repeated before its evaluation, twice at most. A first allocation without a verdict is repeated once.

Writes to FOLDER the baselines, the output of `baseline show`, the verdicts of every trial and an archive of its runs, trials.jsonl and
a table (README.md). A trial that has a line is not repeated, so an interrupted series continues with the same baselines.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.trials.gate_places import link, memory
from benchmarks.trials.gate_trial import AFRESH, REPLACED, Effort, Trial, Trials

KINDS = {"same": 20, "cell": 10, "group": 10, "link": 10, "twice": 10, "half": 10}
ON_MEMORY = ("twice", "half")
WHAT = {
    "same": ("none", "no alarm"),
    "cell": ("a cell 10 % slower", "found"),
    "group": ("large messages of a backend 5 % slower", "found"),
    "link": ("the link 500 → 450 Mbit/s", "found, named as the link"),
    "twice": ("a cell slower by twice the visible slowdown", "found"),
    "half": ("a cell slower by half of that", "not found"),
}


def wanted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return kinds and seeds, each kind spread evenly over the series, so that other work on the machine affects all kinds alike."""
    return [
        (kind, seed)
        for _, kind, seed in sorted(((seed + 0.5) / count, kind, seed) for kind, count in counts.items() for seed in range(count))
    ]


def played(folder: Path) -> list[Trial]:
    """Return the trials stored in a folder."""
    file = folder / "trials.jsonl"
    return [Trial(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def series(folder: Path, counts: Mapping[str, int]) -> Iterator[Trial]:
    """Run the trials that are missing; yield each one after it is stored in the folder.

    Raises Missing if this machine cannot run the test bed, RuntimeError if a command ends with an unexpected code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = {(trial.kind, trial.seed) for trial in played(folder)}
    with ExitStack() as stack:
        places: dict[bool, Trials] = {}
        for kind, seed in (each for each in wanted(counts) if each not in done):
            on_memory = kind in ON_MEMORY
            if on_memory not in places:
                places[on_memory] = Trials(stack.enter_context(memory() if on_memory else link()), folder)
                places[on_memory].learn()
            yield _kept(folder, places[on_memory].play(kind, seed))


def _kept(folder: Path, trial: Trial) -> Trial:
    with (folder / "trials.jsonl").open("a") as file:
        file.write(json.dumps(asdict(trial)) + "\n")
    (folder / "README.md").write_text(readme(played(folder)))
    return trial


def table(trials: Sequence[Trial]) -> str:
    """Return the outcomes as Markdown, with every wrong or undecided trial."""
    lines = [
        "| defect | trials | expected | as expected | other alarms | no verdict | launches each | seconds each |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(kind, those) for kind in KINDS if (those := [trial for trial in trials if trial.kind == kind])]
    wrong = [
        f"- {trial.kind} {trial.seed}: {trial.sentence()}"
        for trial in trials
        if not trial.right or trial.beside or trial.result == "no verdict"
    ]
    return "\n".join([*lines, *([""] if wrong else []), *wrong])


def _line(kind: str, trials: Sequence[Trial]) -> str:
    results = Counter(trial.result for trial in trials)
    right, beside = sum(trial.right for trial in trials), sum(bool(trial.beside) for trial in trials)
    spans = [_span([trial.launches for trial in trials]), _span([round(trial.seconds) for trial in trials])]
    what, aim = WHAT[kind]
    return f"| {' | '.join([what, str(len(trials)), aim, str(right), str(beside), str(results['no verdict']), *spans])} |"


def _span(values: Sequence[int]) -> str:
    return f"{min(values)} to {max(values)}"


def readme(trials: Sequence[Trial]) -> str:
    """Return the folder's README."""
    replaced, undecided, flipped = (sum(getattr(trial, what) for trial in trials) for what in ("replaced", "undecided", "flipped"))
    effort = Effort()
    return "\n".join(
        [
            "# Trials of the gate",
            "",
            f"Made by `python -m benchmarks.trials.gate_trials FOLDER` on {os.cpu_count()} cores. Baselines of {effort.allocations}",
            f"allocations of {effort.baseline_launches} launches; {effort.launches} launches in each evaluated allocation. {replaced} more",
            f"launches replaced those in which the state probe detected another machine state (at most {REPLACED} per allocation).",
            f"Measured again: {flipped} allocations before their evaluation, since more of their launches had another state (each at most",
            f"{AFRESH} times), and {undecided} first allocations without a verdict (at most one per trial).",
            "",
            table(trials),
            "",
            "`trials.jsonl` has a line per trial, and `raw.tar.xz` the runs and verdicts of all. To judge them again and print the table:",
            "`python -m benchmarks.trials.replay FOLDER`.",
            "",
        ]
    )


def main(words: Sequence[str]) -> None:
    """Run the trials, print each outcome, and print the table."""
    folder, *more = words
    count = int(more.pop()) if more and more[-1].isdecimal() else None
    for trial in series(Path(folder).resolve(), {kind: count or KINDS[kind] for kind in more or KINDS}):
        print(f"{trial.kind} {trial.seed}: {trial.sentence()}; {trial.launches} launches, {trial.seconds:.0f} s", flush=True)
    print(table(played(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
