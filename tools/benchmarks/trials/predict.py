"""python -m tools.benchmarks.trials.predict FOLDER [ROUNDS]   checks `collbench predict` on hosts with shaped links.

The name of FOLDER is the rate of the links: 20mbit. Measures four collectives over MPI (TCP) with one rank on each of 2 to 32 hosts, the
node counts of a round in a shuffled order. Then predicts 24 and 32 hosts from 2 to 16, and writes README.md (each prediction with the
measured time, and the counts) and raw.tar.xz (rows and circumstances of all runs, without samples). With existing runs or raw data nothing
is measured, and the tables are made again.
"""

from __future__ import annotations

import random
import sys
import tarfile
from pathlib import Path
from statistics import median

from collbench.analysis.launches import time_of
from collbench.plugins.predict.prediction import asked_size, format_error, predict
from collbench.plugins.predict.text import case_name
from collbench.results.reader import read_run
from collbench.units import format_time
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.series import RAW, srun, unpacked

NODES, TARGETS = (2, 4, 8, 12, 16), (24, 32)
ROUNDS = 2
ABOUT = """\
# Predictions of 24 and 32 hosts from 2, 4, 8, 12 and 16

`python -m tools.benchmarks.trials.predict reports/predict-trials/{rate}` made this page. Hosts are network namespaces with links of
{mbit} Mbit/s each way, one MPICH rank on each, on a machine with two cores and no other work. {launches} launches per node count.

All ranks share the two cores, and MPICH's ranks poll while they wait. That is the likely reason why small messages take longer than
predicted; it was not measured. The term `halving` was added after times at 24 hosts had been seen in an earlier series, so allreduce 32 KiB
does not test it independently. In that series none of five intervals held at 32 hosts: the hosts had overflowed the kernel's table of
neighbors, which all namespaces share, and calls waited up to 28 s for addresses. They have permanent entries now.

"""
SUITE = """\
schema = 1
title = "the trials of predict"

[run]
max_time = 2

[defaults]
sizes = ["64", "4K", "32K", "128K"]
backends = ["mpi"]

[[sweeps]]
operations = ["allreduce", "allgather", "alltoall", "broadcast"]
"""


def measure(folder: Path, rounds: int) -> None:
    """Measure the missing launches into FOLDER/runs: ROUND-NODES."""
    runs = folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    suite = folder / "suite.toml"
    suite.write_text(SUITE)
    for number in range(1, rounds + 1):
        order = [*NODES, *TARGETS]
        random.Random(number).shuffle(order)
        for nodes in order:
            if not (out := runs / f"{number}-{nodes}").exists():
                try:
                    _launch(nodes, folder.name, ["run", str(suite), "--out", str(out), "--timeout", "120", "--quiet"])
                except RuntimeError as error:  # a run that was cut off is left out, and not repeated: that would select quiet ones
                    print(f"{out.name}: {str(error)[-200:]}", flush=True)


def _launch(nodes: int, rate: str, words: list[str]) -> None:
    """Start one rank on each of so many hosts; all 32 hosts exist in every launch."""
    link = ("rate", rate, "burst", "16kb", "latency", "200ms")  # a small burst: what passes unshaped would hide the rate
    with Hosts(max(TARGETS), None) as hosts, SlurmBed(hosts, cpus=1) as bed:
        for name in hosts.names:
            hosts.must("tc", "qdisc", "add", "dev", f"{name}p", "root", "tbf", *link)
            hosts.must("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", "tbf", *link)
        srun(bed, [f"-N{nodes}", f"-n{nodes}", "--mpi=pmi2"], words, codes=(0, 1, 3), timeout=300)


def table(runs: Path) -> str:
    """Return the predictions from up to 16 hosts beside the medians at 24 and 32, as Markdown, with the counts."""
    rows = {path: read_run(path).rows for path in sorted(runs.iterdir())}
    known = [row for of_run in rows.values() for row in of_run if (row.nodes or 0) <= max(NODES)]
    found = predict(known, TARGETS)
    measured: dict[tuple[str, int, int], list[float]] = {}
    for row in (row for of_run in rows.values() for row in of_run if row.nodes in TARGETS):
        if (time := time_of(row)) is not None:
            measured.setdefault((row.operation, asked_size(row), row.nodes or 0), []).append(time)
    lines = ["| case | hosts | check at 16 | predicted µs | interval µs | measured µs (launches) | error | inside |", "|" + "---|" * 8]
    inside = compared = refused = 0
    for case in found.cases:
        for each in case.predictions:
            name, times = f"{case_name(case)} | {each.nodes}", measured.get((str(case.case["operation"]), case.size_bytes, each.nodes), [])
            check = format_error(case.check.error) if case.check else "–"
            if each.time_s is None or each.low_s is None or each.high_s is None:
                refused += 1
                lines.append(f"| {name} | {check} | refused | | | | |")
                continue
            shown = ", ".join(map(format_time, sorted(times))) or "–"
            middle = median(times) if times else None
            is_inside = middle is not None and each.low_s <= middle <= each.high_s
            compared, inside = compared + bool(times), inside + is_inside
            error = format_error(each.time_s / middle - 1) if middle else "–"
            figures = f"{format_time(each.time_s)} | {format_time(each.low_s)}–{format_time(each.high_s)} | {shown}"
            lines.append(f"| {name} | {check} | {figures} | {error} | {('yes' if is_inside else 'no') if times else '–'} |")
    every = len(found.cases) * len(TARGETS)
    counts = f"{refused} of {every} predictions are refused. Of the {compared} others with a measured time, {inside} contain its median."
    return "\n".join([counts, "", *lines]) + "\n"


def finish(folder: Path) -> None:
    """Write README.md and, from the folder of the runs, the raw data."""
    if (folder / "runs").is_dir():
        with tarfile.open(folder / RAW, "w:xz") as packed:
            for path in sorted((folder / "runs").glob("*/*.json*")):
                if path.name in ("run.json", "cells.jsonl"):
                    packed.add(path, str(path.relative_to(folder / "runs")))
    with unpacked(folder) as runs:
        launches = len(list(runs.glob(f"*-{max(TARGETS)}")))
        (folder / "README.md").write_text(
            ABOUT.format(rate=folder.name, mbit=folder.name.removesuffix("mbit"), launches=launches) + table(runs)
        )


if __name__ == "__main__":
    where = Path(sys.argv[1]).resolve()
    if not (where / RAW).exists() and "--tables" not in sys.argv:
        measure(where, int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS)
    finish(where)
