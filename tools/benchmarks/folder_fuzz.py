"""Fuzzed files of run folders, baselines, verdicts, peers' outputs, suites and topologies: no crash, no hang, no more than 1 GB.

`python -m tools.benchmarks.folder_fuzz COUNT [FIRST]` runs so many cases; case N is the same each time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tools.benchmarks.example_files import Files
from tools.benchmarks.figures import Figure, Outcome
from tools.benchmarks.hostile_files import emptied, play

COUNT = 100_000
_MOST_BYTES = 1 << 30
_LONGEST_S = 120.0  # of one case, before it counts as a hang
_AT_ONCE = 2500  # cases of one process: memory that it keeps is not due to a single file
_ROOT = Path(__file__).parents[2]


@dataclass
class Outcomes:
    """Results of some cases: their kinds, the end of each command, the failures, and the highest memory and time."""

    kinds: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    failed: list[dict[str, object]] = field(default_factory=list)
    cases: int = 0
    most_bytes: int = 0
    longest_s: float = 0.0

    def add(self, expected: dict[str, object]) -> None:
        """Add one case, as its process reported it."""
        self.cases += 1
        self.kinds[str(expected["altered"]).partition(":")[0]] += 1
        for how in ("shown", "refused"):
            self.commands.update(f"{name} {how}" for name in expected.get(how, ()))  # type: ignore[attr-defined]
        self.most_bytes = max(self.most_bytes, int(str(expected["most_bytes"])))
        self.longest_s = max(self.longest_s, float(str(expected["s"])))
        if "failed" in expected:
            self.failed.append(expected)


def measure(n: int = COUNT, first: int = 0, at_once: int | None = None) -> Outcome:
    """Plays n cases from the one numbered `first` on, in processes of their own, one per core (or `at_once`)."""
    began = time.perf_counter()
    parts = [(start, min(_AT_ONCE, first + n - start)) for start in range(first, first + n, _AT_ONCE)]
    found = Outcomes()
    with ThreadPoolExecutor(at_once or os.cpu_count()) as pool:
        for actual in pool.map(lambda part: list(_played(*part)), parts):
            for each in actual:
                found.add(each)
    return _outcome(found, time.perf_counter() - began)


def _outcome(found: Outcomes, wall_s: float) -> Outcome:
    shown = sum(count for name, count in found.commands.items() if name.endswith(" shown"))
    refused = sum(count for name, count in found.commands.items() if name.endswith(" refused"))
    figures = [
        Figure("crashes, hangs, forbidden outputs", str(len(found.failed)), "", "0", not found.failed),
        Figure(
            "the most memory that a process held", f"{found.most_bytes / 2**20:.0f} MiB", "", "< 1024 MiB", found.most_bytes < _MOST_BYTES
        ),
        Figure("the longest case", f"{found.longest_s:.2f} s", "", f"< {_LONGEST_S:g} s", found.longest_s < _LONGEST_S),
        Figure("commands that showed something", f"{shown:,}"),
        Figure("commands that refused with a sentence", f"{refused:,}"),
    ]
    kinds = ", ".join(f"{kind} {count:,}" for kind, count in found.kinds.most_common())
    how = (
        f"{found.cases:,} cases in {wall_s:.0f} s ({kinds}): committed runs, baselines, verdicts, other tools' outputs, suites and "
        "topology files, of which one to three are altered: bytes, JSON values, or what replaces the file (a pipe, a device, a "
        "link to itself, a sparse file of 1 TiB). Every command that reads them (report as table, CSV, Markdown, OpenMetrics, seldom as "
        "page; compare, baseline, history, gate, import, probe) ends with a code or a sentence; what it writes is checked for control "
        "characters, formulas, markup and scripts."
    )
    raw = [{"commands": dict(found.commands), "kinds": dict(found.kinds), "cases": found.cases, "wall_s": wall_s}, *found.failed]
    return Outcome("folder_fuzz", how, figures, raw)


def _played(first: int, count: int) -> Iterator[dict[str, object]]:
    """The cases of one process; where it ends before its time, the case that it played then failed, and another one goes on."""
    end = first + count
    while first < end:
        line = [sys.executable, "-m", "tools.benchmarks.folder_fuzz", "--play", str(first), str(end - first)]
        done = subprocess.run(line, cwd=_ROOT, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        for actual in filter(None, done.stdout.splitlines()):
            yield json.loads(actual)
            first += 1
        if first < end:
            words = re.sub(r"\s+", " ", done.stderr)[-2000:]
            yield {"case": first, "altered": "unknown", "s": 0.0, "most_bytes": 0, "failed": f"ended with code {done.returncode}: {words}"}
            first += 1


def play_all(first: int, count: int) -> Iterator[dict[str, object]]:
    """Run cases in this process; report each failure."""
    files = Files()
    with tempfile.TemporaryDirectory(prefix="folder-fuzz-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as place:
        for number in range(first, first + count):
            folder, actual = emptied(Path(place) / "case"), dict[str, object](case=number, altered="unknown")
            began = time.perf_counter()
            try:
                actual |= vars(play(number, files, folder))
            except Exception as error:
                actual["failed"] = "".join(traceback.format_exception(error))[-3000:]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            yield actual | {"s": round(time.perf_counter() - began, 3), "most_bytes": peak}


def _play(first: int, count: int) -> None:
    """A process of its own: it ends with all its stacks on stderr when a case takes too long, and when it takes more than 3 GiB."""
    resource.setrlimit(resource.RLIMIT_AS, (3 * _MOST_BYTES, 3 * _MOST_BYTES))
    sys.setrecursionlimit(1000)
    faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
    for actual in play_all(first, count):
        faulthandler.dump_traceback_later(_LONGEST_S, exit=True)
        sys.__stdout__.write(json.dumps(actual) + "\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """COUNT [FIRST], or for a process of its own --play FIRST COUNT."""
    if sys.argv[1:2] == ["--play"]:
        _play(int(sys.argv[2]), int(sys.argv[3]))
        return
    outcome = measure(*map(int, sys.argv[1:3]))
    for failed in outcome.raw[1:]:
        print(json.dumps(failed, indent=1).replace("\\n", "\n"))
    print(outcome.markdown())


if __name__ == "__main__":
    main()
