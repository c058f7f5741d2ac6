"""python -m tests.beds.gate_trials FOLDER [KIND… [N]]   does `collbench gate` find what became slower, and nothing else?

Seeded trials, by turns, of kinds (all of them; N of each, else as many as stand in KINDS):
    same    nothing is done                                                     -> no alarm
    cell    a cell, drawn, is slowed by 10 % (`--slowed`)                       -> it is found
    group   the large messages of a backend, drawn, are slowed by 5 %           -> the group is found
    link    the link gets nine tenths of its rate, at every other trial where the hosts see it (and it is announced)  -> named as the link
    twice   on shared memory a cell is slowed by twice the smallest slowdown that `baseline show` printed for it      -> it is found
    half    likewise by half of that                                            -> it is not
Over two hosts joined by 500 Mbit/s, `srun -N2`, and between two ranks on this host. Every allocation is measured and judged by the
command line: five launches; what the gate suspects again, by its suite, in two fresh allocations. Launches in which the machine was in
another state (canary) are replaced, two of an allocation at most; where more flipped, the allocation is measured afresh before it is
judged, twice at most. A first allocation without a verdict is measured afresh, once.

Leaves in FOLDER the baselines, what they say that is visible, of every trial the verdicts and an archive of its runs, trials.jsonl and a
table (README.md). A trial whose line is there is not repeated: what was broken off goes on, with the same baselines.
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

from tests.beds.gate_places import link, memory
from tests.beds.gate_trial import AFRESH, REPLACED, Effort, Trial, Trials

KINDS = {"same": 20, "cell": 10, "group": 10, "link": 10, "twice": 10, "half": 10}
ON_MEMORY = ("twice", "half")
WHAT = {
    "same": ("nothing", "no alarm"),
    "cell": ("a cell 10 % slower", "found"),
    "group": ("large messages of a backend 5 % slower", "found"),
    "link": ("the link 500 → 450 Mbit/s", "found, named as the link"),
    "twice": ("a cell slower by twice what was said to be visible", "found"),
    "half": ("a cell slower by half of that", "not found"),
}


def wanted(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Kinds and seeds, each kind spread evenly over the whole, so that what passes meanwhile on the machine meets all alike."""
    return [
        (kind, seed)
        for _, kind, seed in sorted(((seed + 0.5) / count, kind, seed) for kind, count in counts.items() for seed in range(count))
    ]


def played(folder: Path) -> list[Trial]:
    """Those whose line is there."""
    file = folder / "trials.jsonl"
    return [Trial(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def series(folder: Path, counts: Mapping[str, int]) -> Iterator[Trial]:
    """Plays what is still to be played; each trial is kept in the folder before it is returned.

    Raises Missing where this machine cannot have the bed, RuntimeError where a command ends otherwise than it may.
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
    """Outcomes as Markdown, with every trial that was not right, or was not decided."""
    lines = [
        "| what was done | trials | wanted | as wanted | other alarms | no verdict | launches each | seconds each |",
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
    """What lies in the folder, and what came out."""
    replaced, undecided, flipped = (sum(getattr(trial, what) for trial in trials) for what in ("replaced", "undecided", "flipped"))
    effort = Effort()
    return "\n".join(
        [
            "# Trials of the gate",
            "",
            f"Made by `python -m tests.beds.gate_trials FOLDER` on {os.cpu_count()} cores. Baselines of {effort.allocations} allocations",
            f"of {effort.baseline_launches} launches; {effort.launches} launches in each allocation that was judged. {replaced} more were",
            f"measured for launches whose canary told of another state of the machine (at most {REPLACED} of an allocation); {flipped}",
            f"allocations afresh before they were judged, since more of their launches had flipped (each at most {AFRESH} times), and",
            f"{undecided} first allocations, since there was no verdict on them (at most one of a trial).",
            "",
            table(trials),
            "",
            "`trials.jsonl` has a line for each. To judge one again:",
            "",
            "```sh",
            "tar xf same-0/runs.tar.xz -C same-0 && cd same-0 && collbench gate --baseline ../baseline-link 1-first",
            "```",
            "",
        ]
    )


def main(words: Sequence[str]) -> None:
    """Plays, telling each trial as it ends, and prints the table."""
    folder, *more = words
    count = int(more.pop()) if more and more[-1].isdecimal() else None
    for trial in series(Path(folder).resolve(), {kind: count or KINDS[kind] for kind in more or KINDS}):
        print(f"{trial.kind} {trial.seed}: {trial.sentence()}; {trial.launches} launches, {trial.seconds:.0f} s", flush=True)
    print(table(played(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
