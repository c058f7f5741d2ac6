"""python -m benchmarks.trials.quality_trials FOLDER   measures on a quiet and on a disturbed machine, and counts the quality of the rows.

Where:
    host     two ranks on this host
    link     two hosts, joined by a link of 1 Gb/s, started by a real Slurm
States:
    quiet      nothing else runs: start it on an idle machine
    disturbed  a process computes on each core meanwhile

Writes to FOLDER README.md (a table), and raw.tar.xz with the run folders, without samples: `python -m benchmarks.trials.quality_trials
--table FOLDER` counts them again by today's rules.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from collbench.results.quality import QUALITIES, quality_of
from collbench.results.reader import read_run
from tests.testbeds import Hosts, SlurmBed

ROOT = Path(__file__).parents[2]
RAW = "raw.tar.xz"
STATES, WHERE = ("quiet", "disturbed"), ("link", "host")
PROGRAM = [str(ROOT / ".venv/bin/python"), "-m", "collbench"]
COMMANDS = {
    "allreduce": ["allreduce", "--sizes", "8,1K,64K,1M,8M", "--max-time", "2"],
    "alltoall": ["alltoall", "--sizes", "8,1K,64K,1M,8M", "--max-time", "2"],
    "p2p": ["p2p", "--sizes", "8,1K,64K,1M,8M", "--window", "2", "--max-time", "2"],
}
Counts = dict[tuple[str, str, str], Counter[str]]


@contextmanager
def work(state: str) -> Iterator[None]:
    """Let a process compute on each core, if the state is disturbed."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1) if state == "disturbed"]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def measure(folder: Path) -> None:
    """Measure everything into folders such as quiet-link-allreduce."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        for state in STATES:
            for where in WHERE:
                for name, words in COMMANDS.items():
                    line = [*PROGRAM, *words, "--out", str(folder / f"{state}-{where}-{name}"), "--quiet"]
                    with work(state):
                        if where == "link":
                            done = bed.srun(["-N2", "--mpi=pmi2"], line, timeout=400)
                        else:
                            done = subprocess.run(["timeout", "400", *line], capture_output=True, text=True, check=False)
                    if done.returncode:
                        raise RuntimeError(f"{' '.join(line)} ended with {done.returncode}: {done.stderr}")
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
    with TemporaryDirectory() as raw:
        with tarfile.open(folder / RAW) as packed:
            packed.extractall(raw, filter="data")
        return counts(Path(raw))


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
    command = "python -m benchmarks.trials.quality_trials"
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
