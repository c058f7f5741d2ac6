"""python -m tools.benchmarks.trials.quality FOLDER   measures several times on a quiet and a disturbed machine; counts the quality of rows.

Where:
    host     two ranks on this host
    link     two hosts, joined by a link of 200 Mb/s, started by a real Slurm
States:
    quiet      nothing else runs: start it on an idle machine
    disturbed  a process computes on each core meanwhile

`ok` says that a launch was steady. Whether another launch would have the same time is a different question, which `--launches` answers:
the last column counts the ok rows whose time lies within 10 % of the median of other quiet launches.

Writes to FOLDER README.md (a table), and raw.tar.xz with the run folders, without samples: `python -m tools.benchmarks.trials.quality
--table FOLDER` counts them again by today's rules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import median

from collbench.analysis.launches import case_of
from collbench.results.quality import OK, QUALITIES, REMEDIES, quality_of
from collbench.results.reader import read_run
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import PROGRAM, RAW, ROOT, busy, srun, unpacked

STATES, WHERE = ("quiet", "disturbed"), ("host", "link")
LAUNCHES = {"quiet": 5, "disturbed": 3}
PLACES = {"host": "one host", "link": "two hosts, 200 Mb/s"}
SIZES = {"host": "8,1K,64K,1M,8M", "link": "8,64K,1M"}  # the link lets single packets pass at once, and 8M would take 0.35 s
COMMANDS = {"allreduce": [], "alltoall": [], "p2p": ["--window", "2"]}
NEAR = 0.10  # of the median of other quiet launches


@dataclass
class Counts:
    """The rows of a state, a place and a backend: how many have each quality and each remedy, and how many ok ones are near."""

    words: Counter[str] = field(default_factory=Counter)
    remedies: Counter[str] = field(default_factory=Counter)
    near: int = 0


def measure(folder: Path) -> None:
    """Measure everything into folders such as quiet-link-allreduce."""
    with Hosts(2, "200mbit", burst="1600") as hosts, SlurmBed(hosts) as bed:
        for state in STATES:
            for launch, where, name in product(range(LAUNCHES[state]), WHERE, COMMANDS):
                if (folder / f"{state}-{where}-{name}-{launch}").exists():
                    continue  # of a series that was interrupted
                words = ["--sizes", SIZES[where], "--max-time", "1", *COMMANDS[name]]
                line = [name, *words, "--out", str(folder / f"{state}-{where}-{name}-{launch}"), "--quiet"]
                with busy((os.cpu_count() or 1) if state == "disturbed" else 0):
                    if where == "link":
                        srun(bed, ["-N2", "--mpi=pmi2"], line, timeout=400)
                    else:
                        subprocess.run(["timeout", "400", *PROGRAM, *line], stdout=subprocess.DEVNULL, check=True)
                print(f"{state} {where} {name} {launch}", flush=True)


def counts(folder: Path) -> dict[tuple[str, str, str], Counts]:
    """Return the counts by state, place and backend."""
    rows = []
    for run in sorted(folder.iterdir()):
        state, where, _, launch = run.name.split("-")
        rows += [((state, where, row.backend), (where, *case_of(row)), launch, row) for row in read_run(run).rows if row.time_s]
    found: dict[tuple[str, str, str], Counts] = {}
    for key, case, launch, row in rows:
        others = [
            other.time_s.p50
            for (state, *_), its_case, its_launch, other in rows
            if state == "quiet" and its_case == case and (key[0] != "quiet" or its_launch != launch)
        ]
        quality, group = quality_of(row), found.setdefault(key, Counts())
        group.words[quality.word] += 1
        group.remedies.update(quality.remedies)
        group.near += quality.word == OK and abs(row.time_s.p50 / median(others) - 1) <= NEAR
    return found


def table(found: dict[tuple[str, str, str], Counts]) -> str:
    """Return the counts as Markdown."""
    head = ["state", "ranks on", "backend", "rows", *QUALITIES, "ok", "most common remedy", "of the ok rows near other launches"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for (state, where, backend), each in sorted(found.items(), key=lambda item: (STATES.index(item[0][0]), item[0][1:])):
        rows, ok, common = each.words.total(), each.words[OK], each.remedies.most_common(1)
        remedy = f"{REMEDIES[common[0][0]].action}: {common[0][1]}" if common else ""
        cells = [state, PLACES[where], backend, rows, *(each.words[word] for word in QUALITIES), f"{100 * ok / rows:.0f} %", remedy]
        lines.append(f"| {' | '.join(map(str, [*cells, f'{each.near} of {ok}']))} |")
    return "\n".join(lines)


def stored(folder: Path) -> dict[tuple[str, str, str], Counts]:
    """Return the counts of the runs in a folder's archive."""
    with unpacked(folder) as runs:
        return counts(runs)


def keep(runs: Path, folder: Path) -> None:
    """Write README.md and the archive."""
    folder.mkdir(parents=True, exist_ok=True)
    for run in runs.iterdir():
        for name in ("samples.bin", "events.jsonl"):
            (run / name).unlink(missing_ok=True)
        info = run / "run.json"
        info.write_text(info.read_text().replace(str(runs), "quality").replace(str(ROOT), "/opt/collbench"))
    with tarfile.open(folder / RAW, "w:xz", preset=9) as packed:
        for run in sorted(runs.iterdir()):
            packed.add(run, run.name)
    command = "python -m tools.benchmarks.trials.quality"
    text = f"""# The quality of rows on a quiet and on a disturbed machine

Made by `{command} FOLDER` on {os.cpu_count()} cores. Disturbed: a process computes on each core meanwhile.
The rules are those of `collbench explain quality`.

{table(counts(runs))}

`{RAW}` has the runs, without samples. To count again by today's rules: `{command} --table FOLDER`.
"""
    (folder / "README.md").write_text(text)


def main(words: Sequence[str]) -> None:
    """Measure and store, or print the table of a stored series."""
    if words[0] == "--table":
        print(table(stored(Path(words[1]))))
        return
    runs = Path(words[0]).resolve().with_suffix(".runs")
    measure(runs)
    keep(runs, Path(words[0]))
    shutil.rmtree(runs)
    print(table(stored(Path(words[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
