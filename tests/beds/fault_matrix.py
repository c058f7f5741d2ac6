"""python -m tests.beds.fault_matrix FOLDER [WORD…]   does every fault end in time, in a sentence that names who and when?

Every fault in every phase on every library (tests/faults/matrix/plan.py), on four ranks over two hosts that share neither processes nor
files in /tmp; then once more through Slurm. WORDs choose among the cases: those whose name has all of them ("killed" "timed" "gloo").

Leaves in FOLDER trials.jsonl, a line for each, a table (README.md), and in FOLDER/amiss what was said where something was not as it has to
be. A case whose line is there is not repeated: what was broken off goes on.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.faults.matrix.outcome import Outcome, findings_of_all, limit_words
from tests.faults.matrix.plan import FAULTS, PATH_FAULTS, PATH_RANKS, PHASES, WHAT, Case, matrix, path_matrix
from tests.faults.matrix.play import player

Table = Callable[[Sequence[Outcome]], str]


def played(folder: Path) -> list[Outcome]:
    """Those whose line is there."""
    file = folder / "trials.jsonl"
    return [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def series(folder: Path, cases: Sequence[Case], readme: Table) -> Iterator[Outcome]:
    """Plays what is still to be played; each outcome is kept in the folder before it is returned. Raises Missing without hosts."""
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
    """A line for each fault of a rank and phase, and each fault of a path and host; then whatever was amiss."""
    ranks, paths = [one for one in outcomes if not one.case.of_path], [one for one in outcomes if one.case.of_path]
    tables = [*([_of_ranks(ranks)] if ranks or not paths else []), *([_of_paths(paths)] if paths else [])]
    return "\n".join(["\n\n".join(tables), *amiss(outcomes)])


def _of_paths(outcomes: Sequence[Outcome]) -> str:
    """A column for each library: what was named, the exit codes, and how long after the fault the last rank had ended."""
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
        f"**{len(one.amiss)} amiss**"
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
    """ "rank 2: named, 1.3 s"."""
    codes = [code for code in one.codes if code] or [0]
    ended = f"code {Counter(codes).most_common(1)[0][0]}, {one.seconds:.1f} s"
    return f"rank {one.victim}: {ended}" if one.right else f"rank {one.victim}: **{len(one.amiss)} amiss**, {ended}"


def amiss(outcomes: Sequence[Outcome]) -> list[str]:
    """What was not as it has to be."""
    wrong = [f"- {one.case.name}: {'; '.join(one.amiss)}" for one in outcomes if not one.right]
    return ["", *wrong] if wrong else []


def readme(outcomes: Sequence[Outcome]) -> str:
    """What lies in the folder, and what came out."""
    right, slowest = sum(one.right for one in outcomes), max((one.seconds for one in outcomes if not one.case.harmless), default=0.0)
    return "\n".join(
        [
            "# Fault matrix",
            "",
            "Made by `python -m tests.beds.fault_matrix FOLDER`: four ranks on two hosts, and what becomes of their run when something",
            f"happens to one of them. {limit_words()}.",
            "",
            f"{right} of {len(outcomes)} as they have to be: ended in time, the right rank and phase named and no other rank, every",
            f"finished cell read back, no process, port or file left. The slowest end came {slowest:.1f} s after the fault.",
            "",
            table(outcomes),
            "",
        ]
    )  # fmt: skip


def chosen(words: Sequence[str], slurm: bool = True) -> list[Case]:
    """The cases whose name has all these words."""
    return [case for case in (*path_matrix(), *matrix(slurm)) if all(word in case.name for word in words)]


def main(words: Sequence[str]) -> None:
    """Plays, telling each case as it ends, and prints the table."""
    folder, *more = words
    for outcome in series(Path(folder).resolve(), chosen(more), readme):
        told = "; ".join(outcome.amiss) or "; ".join(outcome.said[:2])
        print(f"{outcome.case.name}: {'right' if outcome.right else 'AMISS'}, {outcome.seconds:.1f} s: {told}", flush=True)
    print(table(played(Path(folder))))


if __name__ == "__main__":
    main(sys.argv[1:])
