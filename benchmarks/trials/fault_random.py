"""python -m benchmarks.trials.fault_random FOLDER [N [paths]]   N seeded faults (200) at random moments of a run.

With "paths" the faults are of the path between the hosts.

The seed draws the fault, rank, time, library and launcher. No message may name a wrong rank, no finished case may be lost, and no
process may be left. If a fault comes after the end of the run, the run must have ended without an error.

Writes the same files to FOLDER as `fault_matrix`, with another table; an interrupted series continues.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.trials.fault_matrix import amiss, played, series
from tests.faults.matrix.outcome import Outcome, limit_words
from tests.faults.matrix.plan import (
    FAULTS,
    LAUNCHERS,
    LIBRARIES,
    PATH_FAULTS,
    PATH_LIBRARIES,
    PATH_RANKS,
    RANKS,
    WHAT,
    Case,
)

COUNT = 200
LATEST_S = 6.0  # after the start of the rank with the fault; a run without a fault takes about as long


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


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a line per fault; then the failed checks."""
    lines = [
        "| fault | drawn | all checks passed | wrong rank named | lost cases | left behind | seconds to the last rank's end |",
        "|---|---|---|---|---|---|---|",
    ]
    what = {**WHAT, **PATH_FAULTS}
    each = [(what[fault], [one for one in outcomes if one.fault == fault]) for fault in (*FAULTS, *PATH_FAULTS)]
    lines += [_line(what, those) for what, those in [*each, ("**all**", list(outcomes))] if those]
    return "\n".join([*lines, *amiss(outcomes)])


def _line(what: str, those: Sequence[Outcome]) -> str:
    def count(word: str) -> int:
        return sum(any(word in sentence for sentence in one.amiss) for one in those)

    seconds = [one.seconds for one in those if not one.case.harmless]
    span = f"{min(seconds):.1f} to {max(seconds):.1f}" if seconds else "–"
    numbers = [
        len(those),
        sum(one.right for one in those),
        count("names the wrong rank") + count("is a false name"),
        count("are lost"),
        sum(bool(one.left) for one in those),
    ]
    return f"| {' | '.join([what, *map(str, numbers), span])} |"


def readme(outcomes: Sequence[Outcome]) -> str:
    """Return the folder's README."""
    return "\n".join(
        [
            "# Random faults",
            "",
            "Made by `python -m benchmarks.trials.fault_random FOLDER`:"
            f" a seed draws the fault, 0 to {LATEST_S:g} s after the start of the",
            f"rank with the fault. Four ranks on two hosts; two ranks for faults of the path. {limit_words()}.",
            "",
            table(outcomes),
            "",
        ]
    )  # fmt: skip


def main(words: Sequence[str]) -> None:
    """Run the cases, print each outcome, and print the table."""
    folder, count = Path(words[0]).resolve(), int(words[1]) if len(words) > 1 else COUNT
    draw = drawn_path if "paths" in words[2:] else drawn
    for outcome in series(folder, [draw(seed) for seed in range(count)], readme):
        details = "; ".join(outcome.amiss) or "; ".join(outcome.said[:2])
        print(f"{outcome.case.name}: {'passed' if outcome.right else 'FAILED'}, {outcome.seconds:.1f} s: {details}", flush=True)
    print(table(played(folder)))


if __name__ == "__main__":
    main(sys.argv[1:])
