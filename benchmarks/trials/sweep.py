"""python -m benchmarks.trials.sweep DIR   measures the sweep over a link of known rate, through real Slurm, and keeps the run folders.

Two hosts joined by 1 Gbit/s; `srun -N2 collbench allreduce --sizes 1K-64M` with --mpi=none, pmi2 and pmix (Open MPI's
environment). MPI must not use shared memory, which the hosts of the test bed have in common. Then large messages over links of
100 Mbit/s, 1 and 2 Gbit/s. Prints tables of the rates against the links'.
"""

from __future__ import annotations

import sys
from pathlib import Path

from collbench.report.plan import in_print_order
from collbench.results.reader import read_run
from collbench.units import format_size
from tests.testbeds import Hosts, SlurmBed

LINK_BYTES_PER_S = 125e6
OVER_THE_LINK = {
    "none": {},
    "pmi2": {"MPIR_CVAR_CH4_NETMOD": "ucx", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"},
    "pmix": {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ob1"},
}
LINKS = {"100mbit": 12.5e6, "1gbit": 125e6, "2gbit": 250e6}
PAYLOAD = 1448 / 1514  # bytes of TCP's payload in a full Ethernet frame, as the shaper counts frames
# Without ping-pong: while one direction is idle, the shaper saves up a burst for it.
LARGE = {
    "allreduce": ["allreduce", "--backend", "gloo", "--sizes", "16M,64M", "--max-time", "30"],
    "p2p": ["p2p", "--sizes", "16M", "--window", "1", "--max-time", "10"],
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


def links(target: Path, root: Path) -> None:
    """Measure large messages over each link."""
    for name in LINKS:
        with Hosts(2, name) as hosts, SlurmBed(hosts) as bed:
            for what, words in LARGE.items():
                line = [str(root / ".venv/bin/python"), "-m", "collbench", *words, "--out", str(target / f"link-{name}" / what)]
                done = bed.srun(["-N2", "--mpi=pmi2"], line, timeout=600, env=OVER_THE_LINK["pmi2"])
                print(done.stderr, file=sys.stderr)


def links_table(target: Path) -> list[str]:
    """Return lines of Markdown: per link, backend and size the rate as a share of the link's TCP payload rate."""
    lines = ["| link | operation | backend | size | busbw | of the payload's rate |", "|---|---|---|---|---|---|"]
    for name, rate in LINKS.items():
        for row in (row for what in LARGE for row in in_print_order(read_run(target / f"link-{name}" / what).rows)):
            if row.busbw_bytes_per_s and row.operation != "p2p_latency":
                shares = [f"{row.busbw_bytes_per_s / 1e6:.2f} MB/s", f"{row.busbw_bytes_per_s / rate / PAYLOAD:.3f}"]
                lines.append(f"| {' | '.join([name, row.operation, row.backend, format_size(row.size_bytes), *shares])} |")
    return lines


def table(target: Path) -> list[str]:
    """Return lines of Markdown: per kind of launch and backend the rate at 64 MiB as a share of the link's."""
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
    links(Path(sys.argv[1]).resolve(), Path(__file__).parents[2])
    print("\n".join([*table(Path(sys.argv[1])), "", *links_table(Path(sys.argv[1]))]))
