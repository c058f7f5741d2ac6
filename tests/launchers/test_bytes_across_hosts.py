"""The hosts' link counters for each operation, compared with the bytes of its algorithm, within 2 %.

Measured at 3 and 4 hosts, one rank each, 3 to 6 MiB (S is the size):

- Ring-like, each host sends and receives the same share: all-gather, all-to-all, alltoallv and sendrecv of MPICH, Open MPI and Gloo;
  hypercube; MPICH's reduce-scatter (pairwise); all-reduce as a ring, Gloo's own choice, which the MPIs are set to here.
- By themselves the MPIs move the all-reduce otherwise at 3 hosts: MPICH's send S, 2 S and S, Open MPI's 2.5 S, S and S.
- Gloo's reduce-scatter is a whole all-reduce of which each rank keeps its part: twice the bytes.
- Open MPI's reduce-scatter is a tree at 3 hosts (0.67 S, S and S) and, by size, at 4.
- Broadcast goes down trees of many shapes, in which each host receives the data once. So do gather and scatter at 3 hosts; at 4
  MPICH's forward some parts (1 S in all instead of 0.75 S).
- Reduce moves more than it must on MPICH (2.5 S at 3 hosts) and Gloo (2.67 S), 2 S on Open MPI: neither ring-like nor the least.
"""

import json
from pathlib import Path

import pytest

from tests.cli.command import BIN, PROGRAM, ROOT, environment
from tests.conftest import sample
from tests.launchers.stored import reached, stored

NEAR = 0.02
SIZE = 6 << 20  # whole elements for 3 and for 4 ranks
SKEW = 2
MPICH = {
    "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0", "MPIR_CVAR_DEVICE_COLLECTIVES": "none", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "ring",
}  # fmt: skip
OPENMPI = {
    "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_pml": "ob1", "OMPI_MCA_coll": "^han,xhc,sm",
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "4",
}  # fmt: skip
# What each of n hosts sends, and what it receives, in parts of the size.
RING_LIKE = {
    "allreduce": lambda n: 2 * (n - 1) / n, "allgather": lambda n: (n - 1) / n, "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n, "alltoallv": lambda n: (n - 1) / n, "sendrecv": lambda n: 1, "hypercube": lambda n: 1,
}  # fmt: skip
OTHERWISE = {("gloo", "reducescatter"): RING_LIKE["allreduce"]}
TREES = {3: ("broadcast", "gather", "scatter"), 4: ("broadcast",)}  # what reaches each host once, by the number of hosts

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]


def ring_like(library, operation, n):
    """Whether the library's hosts all move the same, by what was measured."""
    return (library, operation) != ("openmpi", "reducescatter") and (operation != "hypercube" or n & (n - 1) == 0)


def launched(bed, library, python, sweeps, folder):
    """The rows of one launch, one rank on each host."""
    backend, n = "gloo" if library == "gloo" else "mpi", len(bed.names)
    line = [str(BIN / "mpiexec"), *reached(bed, MPICH)]
    if library == "openmpi":
        reach = ["--prtemca", "plm_ssh_agent", bed.rsh, "--prtemca", "prte_if_include", "eth0"]
        line = [str(Path(python).with_name("mpirun")), *reach, "--host", ",".join(f"{name}:1" for name in bed.names), "-n", str(n)]
    asked = json.dumps({"backend": backend, "ranks": n, "out": str(folder / "run"), "sweeps": sweeps})
    done = bed.run(0, [*line, python, str(ROOT / "tests/contract/rank.py"), asked], 90, environment(OPENMPI))
    return stored(done, folder).rows


def shares(row, way):
    """Bytes out of, or into, each host, in parts of the size, per iteration."""
    moved = row.evidence["moved"]
    return [host.get(way, {"bytes": 0})["bytes"] / moved["iterations"] / row.size_bytes for host in moved["hosts"].values()]


def check(library, row, n):
    assert (row.na, row.wrong, len(row.evidence["moved"]["hosts"])) == (None, 0, n), row.operation
    if row.traffic not in (None, "even") or row.operation in TREES[n]:
        moved = row.evidence["moved"]
        assert sum(shares(row, "out")) * moved["iterations"] * row.size_bytes == pytest.approx(moved["at_least_bytes"], rel=NEAR)
        received = [host["in"]["ratio"] for host in moved["hosts"].values() if host["in"]["at_least_bytes"]]
        assert received == pytest.approx([1.0] * len(received), abs=NEAR), row.operation
    else:
        wanted = OTHERWISE.get((library, row.operation), RING_LIKE[row.operation])(n)
        assert shares(row, "out") == pytest.approx([wanted] * n, rel=NEAR), row.operation
        assert shares(row, "in") == pytest.approx([wanted] * n, rel=NEAR), row.operation


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("library", "n"), [
    pytest.param("mpich", 3, marks=pytest.mark.long), pytest.param("openmpi", 3, marks=pytest.mark.long),
    pytest.param("gloo", 3, marks=pytest.mark.long),
    *(pytest.param(library, 4, marks=pytest.mark.long) for library in ("mpich", "openmpi", "gloo")),
])  # fmt: skip
def test_links_carry_what_the_algorithm_must_move(library, n, hosts, request, tmp_path):
    python = request.getfixturevalue("openmpi_python") if library == "openmpi" else PROGRAM[0]
    alike = [name for name in RING_LIKE if ring_like(library, name, n)]
    wanted = [*sample(alike, 3), *sample(TREES[n], 1)]
    each = {"sizes": [SIZE], "dtypes": ["float32"]}
    sweeps = [{**each, "operations": [name]} for name in wanted]
    rows = launched(hosts(n, "1gbit"), library, python, [*sweeps, {**each, "operations": ["alltoallv"], "skew": SKEW}], tmp_path)
    assert sorted(row.operation for row in rows) == sorted([*wanted, "alltoallv"])
    for row in rows:
        check(library, row, n)
