"""python -m tools.benchmarks.trials.overlap FOLDER   measures the overlap of MPI and Gloo on links of known rates.

FOLDER gets trials.jsonl, a line for each row. Two hosts (network namespaces) have one rank each, and a shaped link. An all-reduce lasts as
long as the link needs for its bytes, almost without a core, and the computation is calibrated to that. So the time of both must lie between
the longer one and the sum. MPICH makes progress only within its calls, except for what the kernel's buffers hold: its overlap must be
small. Gloo's threads move the data: its overlap must be large.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from collbench.plugins.overlap.records import overlap_of
from tests.cli.command import BIN, PROGRAM, environment
from tests.launchers.stored import stored
from tests.testbeds import Hosts

RATES_MBIT = (100, 200)
SIZES = "1M,2M"
REPEATS = 3
BLOCKS = 12
_OVER_THE_LINK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}


def measured(hosts: Hosts, backend: str, words: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield for each row its size in bytes, its operation and the values of its overlap."""
    reach = ["-launcher", "ssh", "-launcher-exec", hosts.rsh, "-hosts", ",".join(hosts.names), "-ppn", "1", "-iface", "eth0", "-n", "2"]
    passed = [word for name, value in _OVER_THE_LINK.items() for word in ("-genv", name, value)]
    line = [str(BIN / "mpiexec"), *reach, *passed, *PROGRAM, *words, "--overlap", "--backend", backend, "--out", str(folder / "run")]
    for row in stored(hosts.run(0, line, 120, environment()), folder).rows:
        if row.na is not None or overlap_of(row.overlap) is None:
            raise RuntimeError(f"{row.operation} on {row.backend}: {row.na}")
        yield {"backend": row.backend, "operation": row.operation, "size_bytes": row.size_bytes, "wrong": row.wrong, **row.overlap}


def main(folder: Path) -> None:
    """Measure all trials, the backends in turn, and append each to trials.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for rate in RATES_MBIT:
        with Hosts(2, f"{rate}mbit", "64kb") as hosts:
            for repeat in range(REPEATS):
                for backend in ("mpi", "gloo"):
                    with TemporaryDirectory() as own:
                        found = list(
                            measured(hosts, backend, ["allreduce", "--sizes", SIZES, "-n", str(BLOCKS), "--max-time", "30"], Path(own))
                        )
                    with (folder / "trials.jsonl").open("a", encoding="utf-8") as file:
                        file.writelines(json.dumps({"rate_mbit": rate, "repeat": repeat, **each}) + "\n" for each in found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
