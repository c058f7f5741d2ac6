"""python -m benchmarks.trials.fault_matrix FOLDER [WORD…]   checks that a run with each fault ends in time and reports rank and phase.

Every fault in every phase on every library (tests/faults/matrix/plan.py), on four ranks over two hosts that share neither processes nor
files in /tmp; then through Slurm. WORDs select the cases with all of these words in their name ("killed" "timed" "gloo").

Writes to FOLDER trials.jsonl (a line per case), README.md (a table) and, in FOLDER/amiss, the output of cases with failed checks.
A case that has a line is not repeated, so an interrupted series continues.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from collbench.units import plural
from tests.faults.matrix.outcome import Outcome, findings_of_all, limit_words
from tests.faults.matrix.plan import FAULTS, PATH_FAULTS, PATH_RANKS, PHASES, WHAT, Case, matrix, path_matrix
from tests.faults.matrix.play import player

Table = Callable[[Sequence[Outcome]], str]


def played(folder: Path) -> list[Outcome]:
    """Return the outcomes stored in a folder."""
    file = folder / "trials.jsonl"
    return [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def series(folder: Path, cases: Sequence[Case], readme: Table) -> Iterator[Outcome]:
    """Run the cases that are missing; yield each outcome after it is stored in the folder. Raises Missing without hosts."""
    folder.mkdir(parents=True, exist_ok=True)
    done = {outcome.case for outcome in played(folder)}
    left = [case for case in cases if case not in done]
    if not left:
        return
    with player(any(case.launcher == "srun" for case in left), folder / "amiss") as place:
        for case in left:
            if case.launcher == "srun" and not place.slurm:
                continue
            outcome = place.play(case)
            with (folder / "trials.jsonl").open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
            (folder / "README.md").write_text(readme(played(folder)))
            yield outcome


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a line per fault of a rank and phase, and per fault of a path and host; then the failed checks."""
    ranks, paths = [one for one in outcomes if not one.case.of_path], [one for one in outcomes if one.case.of_path]
    tables = [*([_of_ranks(ranks)] if ranks or not paths else []), *([_of_paths(paths)] if paths else [])]
    return "\n".join(["\n\n".join(tables), *amiss(outcomes)])


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


def amiss(outcomes: Sequence[Outcome]) -> list[str]:
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
            "Made by `python -m benchmarks.trials.fault_matrix FOLDER`: a fault in one of four ranks on",
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


def main(words: Sequence[str]) -> None:
    """Run the cases, print each outcome, and print the table."""
    folder, *more = words
    for outcome in series(Path(folder).resolve(), chosen(more), readme):
        details = "; ".join(outcome.amiss) or "; ".join(outcome.said[:2])
        print(f"{outcome.case.name}: {'passed' if outcome.right else 'FAILED'}, {outcome.seconds:.1f} s: {details}", flush=True)
    print(table(played(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
