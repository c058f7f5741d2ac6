"""python -m benchmarks.trials.quality FOLDER   measures on a quiet and on a disturbed machine, and counts the quality of the rows.

Where:
    host     two ranks on this host
    link     two hosts, joined by a link of 1 Gb/s, started by a real Slurm
States:
    quiet      nothing else runs: start it on an idle machine
    disturbed  a process computes on each core meanwhile

Writes to FOLDER README.md (a table), and raw.tar.xz with the run folders, without samples: `python -m benchmarks.trials.quality
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
from itertools import product
from pathlib import Path

from benchmarks.trials.series import PROGRAM, RAW, ROOT, busy, srun, unpacked
from collbench.results.quality import QUALITIES, quality_of
from collbench.results.reader import read_run
from tests.testbeds import Hosts, SlurmBed

STATES, WHERE = ("quiet", "disturbed"), ("link", "host")
COMMANDS = {
    "allreduce": ["allreduce", "--sizes", "8,1K,64K,1M,8M", "--max-time", "2"],
    "alltoall": ["alltoall", "--sizes", "8,1K,64K,1M,8M", "--max-time", "2"],
    "p2p": ["p2p", "--sizes", "8,1K,64K,1M,8M", "--window", "2", "--max-time", "2"],
}
Counts = dict[tuple[str, str, str], Counter[str]]


def measure(folder: Path) -> None:
    """Measure everything into folders such as quiet-link-allreduce."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        for state, where, (name, words) in product(STATES, WHERE, COMMANDS.items()):
            line = [*words, "--out", str(folder / f"{state}-{where}-{name}"), "--quiet"]
            with busy((os.cpu_count() or 1) if state == "disturbed" else 0):
                if where == "link":
                    srun(bed, ["-N2", "--mpi=pmi2"], line, timeout=400)
                else:
                    subprocess.run(["timeout", "400", *PROGRAM, *line], stdout=subprocess.DEVNULL, check=True)
            print(f"{state} {where} {name}", flush=True)


def counts(folder: Path) -> Counts:
    """Return how many rows have each quality, by state, place and backend."""
    found: Counts = {}
    for run in sorted(folder.iterdir()):
        state, where, _ = run.name.split("-")
        for row in read_run(run).rows:
            quality = quality_of(row)
            if quality is not None:
                found.setdefault((state, where, row.backend), Counter())[quality.word] += 1
    return found


def table(found: Counts) -> str:
    """Return the counts as Markdown."""
    lines = [f"| state | ranks on | backend | rows | {' | '.join(QUALITIES)} | ok |", f"|{'---|' * (5 + len(QUALITIES))}"]
    for (state, where, backend), words in sorted(found.items(), key=lambda each: (STATES.index(each[0][0]), each[0][1:])):
        rows, place = words.total(), "two hosts, 1 Gb/s" if where == "link" else "one host"
        numbers = " | ".join(str(words[word]) for word in QUALITIES)
        lines.append(f"| {state} | {place} | {backend} | {rows} | {numbers} | {100 * words['ok'] / rows:.0f} % |")
    return "\n".join(lines)


def stored(folder: Path) -> Counts:
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
    command = "python -m benchmarks.trials.quality"
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
    shutil.rmtree(runs, ignore_errors=True)
    measure(runs)
    keep(runs, Path(words[0]))
    shutil.rmtree(runs)
    print(table(stored(Path(words[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
