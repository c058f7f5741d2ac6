"""Checks that a run with a fault ends in time and reports rank and phase.

    python -m tools.benchmarks.trials.faults matrix FOLDER [WORD…]   every fault in every phase; WORDs select cases
    python -m tools.benchmarks.trials.faults random FOLDER [N]       N seeded faults (200) at random moments of a run
    python -m tools.benchmarks.trials.faults paths FOLDER [N]        the same with faults of the path between the hosts

Matrix: every fault in every phase on every library (tests/faults/matrix/plan.py), on four ranks over two hosts that share neither
processes nor files in /tmp; then through Slurm. WORDs select the cases with all of these words in their name ("killed" "timed" "gloo").
Random: the seed draws the fault, rank, time, library and launcher. No message may name a wrong rank, no finished case may be lost, and no
process may be left. If a fault comes after the end of the run, the run must have ended without an error.

Writes to FOLDER trials.jsonl (a line per case), README.md (a table) and, in FOLDER/amiss, the output of cases with failed checks.
A case that has a line is not repeated, so an interrupted series continues.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from collbench.units import plural
from tests.faults.matrix.outcome import Outcome, findings_of_all, limit_words
from tests.faults.matrix.plan import (
    FAULTS,
    LAUNCHERS,
    LIBRARIES,
    PATH_FAULTS,
    PATH_LIBRARIES,
    PATH_RANKS,
    PHASES,
    RANKS,
    WHAT,
    Case,
    matrix,
    path_matrix,
)
from tests.faults.matrix.play import player
from tools.benchmarks.trials.series import keep, span, trials_in

Table = Callable[[Sequence[Outcome]], str]
COUNT = 200
LATEST_S = 6.0  # after the start of the rank with the fault; a run without a fault takes about as long


def series(folder: Path, cases: Sequence[Case], readme: Table) -> Iterator[Outcome]:
    """Run the cases that are missing; yield each outcome after it is stored in the folder. Raises Missing without hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {outcome.case for outcome in trials_in(folder, Outcome)}
    left = [case for case in cases if case not in done]
    if not left:
        return
    with player(any(case.launcher == "srun" for case in left), folder / "amiss") as place:
        for case in left:
            if case.launcher == "srun" and not place.slurm:
                continue
            outcome = place.play(case)
            keep(folder, outcome, readme)
            yield outcome


# The matrix: every fault in every phase.


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a line per fault of a rank and phase, and per fault of a path and host; then the failed checks."""
    ranks, paths = [one for one in outcomes if not one.case.of_path], [one for one in outcomes if one.case.of_path]
    tables = [*([_of_ranks(ranks)] if ranks or not paths else []), *([_of_paths(paths)] if paths else [])]
    return "\n".join(["\n\n".join(tables), *_failed_checks(outcomes)])


def _of_paths(outcomes: Sequence[Outcome]) -> str:
    """Return the table of path faults, a column per library: the result, and the time from the fault to the end of the last rank."""
    libraries = list(dict.fromkeys(one.library for one in outcomes))
    lines = [f"| fault of the path, {_dates(outcomes)} | host of | {' | '.join(libraries)} |", "|---" * (len(libraries) + 2) + "|"]
    for fault, what in PATH_FAULTS.items():
        for side in range(PATH_RANKS):
            those = {one.library: _path_cell(one) for one in outcomes if (one.fault, one.victim) == (fault, side)}
            lines += [f"| {what} | rank {side} | {' | '.join(those.get(name, '–') for name in libraries)} |"] if those else []
    return "\n".join(lines)


def _dates(outcomes: Sequence[Outcome]) -> str:
    dates = sorted({one.date for one in outcomes if one.date})
    return " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "not dated"


def _path_cell(one: Outcome) -> str:
    found = findings_of_all(one.case, one.said)
    word = (
        f"**{plural(len(one.amiss), 'failed check')}**"
        if not one.right
        else "goes on"
        if set(one.codes) == {0}
        else f"{found} named"
        if found == "cause"
        else found
    )
    return f"{word}, {one.seconds:.1f} s"


def _of_ranks(outcomes: Sequence[Outcome]) -> str:
    ways = list(dict.fromkeys((one.library, one.launcher) for one in outcomes if one.launcher != "srun"))
    columns = [(f"{library}, {launcher}", {(library, launcher)}) for library, launcher in ways]
    if any(one.launcher == "srun" for one in outcomes):
        columns.append(("srun, in turn", {(one.library, "srun") for one in outcomes}))
    lines = [f"| fault | phase | {' | '.join(name for name, _ in columns)} |", "|---" * (len(columns) + 2) + "|"]
    for fault in FAULTS:
        for phase in PHASES:
            those = [one for one in outcomes if (one.fault, one.phase) == (fault, phase)]
            words = ["; ".join(_short(one) for one in those if (one.library, one.launcher) in which) or "–" for _, which in columns]
            lines += [f"| {WHAT[fault]} | {phase} | {' | '.join(words)} |"] if those else []
    return "\n".join(lines)


def _short(one: Outcome) -> str:
    """Return "rank 2: code 4, 1.3 s"."""
    codes = [code for code in one.codes if code] or [0]
    ended = f"code {Counter(codes).most_common(1)[0][0]}, {one.seconds:.1f} s"
    return f"rank {one.victim}: {ended}" if one.right else f"rank {one.victim}: **{plural(len(one.amiss), 'failed check')}**, {ended}"


def _failed_checks(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the failed checks, a line per case."""
    wrong = [f"- {one.case.name}: {'; '.join(one.amiss)}" for one in outcomes if not one.right]
    return ["", *wrong] if wrong else []


def readme(outcomes: Sequence[Outcome]) -> str:
    """Return the folder's README."""
    right, slowest = sum(one.right for one in outcomes), max((one.seconds for one in outcomes if not one.case.harmless), default=0.0)
    return "\n".join(
        [
            "# Fault matrix",
            "",
            "Made by `python -m tools.benchmarks.trials.faults matrix FOLDER`: a fault in one of four ranks on",
            f"two hosts. {limit_words()}.",
            "",
            f"{right} of {len(outcomes)} runs passed all checks: they ended in time, named the right rank and phase and no other rank,",
            f"kept every finished case, and left no process, port or file. The slowest run ended {slowest:.1f} s after the fault.",
            "",
            table(outcomes),
            "",
        ]
    )  # fmt: skip


def chosen(words: Sequence[str], slurm: bool = True) -> list[Case]:
    """Return the cases with all these words in their name."""
    return [case for case in (*path_matrix(), *matrix(slurm)) if all(word in case.name for word in words)]


# Faults drawn by a seed.


def drawn_path(seed: int) -> Case:
    """Return the case of a seed among the faults of a path."""
    chance = random.Random(f"path {seed}")
    library = chance.choice(PATH_LIBRARIES)
    fault, side = chance.choice([*PATH_FAULTS]), chance.randrange(PATH_RANKS)
    return Case(fault, "", library, LAUNCHERS[library], side, round(chance.uniform(0, LATEST_S), 2))


def drawn(seed: int) -> Case:
    """Return the case of a seed."""
    chance = random.Random(f"fault {seed}")
    fault, library = chance.choice(FAULTS), chance.choice(LIBRARIES)
    launcher = chance.choice((LAUNCHERS[library], LAUNCHERS[library], "srun"))
    return Case(fault, "", library, launcher, chance.randrange(RANKS), round(chance.uniform(0, LATEST_S), 2))


def table_of_random(outcomes: Sequence[Outcome]) -> str:
    """Return a line per fault; then the failed checks."""
    lines = [
        "| fault | drawn | all checks passed | wrong rank named | lost cases | left behind | seconds to the last rank's end |",
        "|---|---|---|---|---|---|---|",
    ]
    what = {**WHAT, **PATH_FAULTS}
    each = [(what[fault], [one for one in outcomes if one.fault == fault]) for fault in (*FAULTS, *PATH_FAULTS)]
    lines += [_line_of_random(what, those) for what, those in [*each, ("**all**", list(outcomes))] if those]
    return "\n".join([*lines, *_failed_checks(outcomes)])


def _line_of_random(what: str, those: Sequence[Outcome]) -> str:
    def count(word: str) -> int:
        return sum(any(word in sentence for sentence in one.amiss) for one in those)

    seconds = [one.seconds for one in those if not one.case.harmless]
    numbers = [
        len(those),
        sum(one.right for one in those),
        count("names the wrong rank") + count("is a false name"),
        count("are lost"),
        sum(bool(one.left) for one in those),
    ]
    return f"| {' | '.join([what, *map(str, numbers), span([round(each, 1) for each in seconds])])} |"


def readme_of_random(outcomes: Sequence[Outcome]) -> str:
    """Return the folder's README."""
    return "\n".join(
        [
            "# Random faults",
            "",
            "Made by `python -m tools.benchmarks.trials.faults random FOLDER` (or `paths`): a seed draws the fault,",
            f"0 to {LATEST_S:g} s after the start of the rank with the fault.",
            f"Four ranks on two hosts; two ranks for faults of the path. {limit_words()}.",
            "",
            table_of_random(outcomes),
            "",
        ]
    )  # fmt: skip


def main(words: Sequence[str]) -> None:
    """Run the cases, print each outcome, and print the table."""
    if len(words) < 2 or words[0] not in ("matrix", "random", "paths"):
        sys.exit("usage: python -m tools.benchmarks.trials.faults matrix|random|paths FOLDER [WORD or COUNT …]")
    what, folder, more = words[0], Path(words[1]).resolve(), words[2:]
    if what == "matrix":
        cases, page, show = chosen(more), readme, table
    else:
        draw = drawn_path if what == "paths" else drawn
        cases, page, show = [draw(seed) for seed in range(int(more[0]) if more else COUNT)], readme_of_random, table_of_random
    for outcome in series(folder, cases, page):
        details = "; ".join(outcome.amiss) or "; ".join(outcome.said[:2])
        print(f"{outcome.case.name}: {'passed' if outcome.right else 'FAILED'}, {outcome.seconds:.1f} s: {details}", flush=True)
    print(show(trials_in(folder, Outcome)))


if __name__ == "__main__":
    main(sys.argv[1:])
