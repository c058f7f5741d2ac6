"""Evidence on the counters of real interfaces: two hosts, a link of 1 Gbit/s, and an MPI that finds the memory they share."""

from pathlib import Path

import pytest

from tests.cli.command import BIN, PROGRAM, environment
from tests.launchers.stored import reached, stored

MPICH = BIN / "mpiexec"
OVER_THE_LINK = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
NEAR = 0.02

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.long,
    pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]


@pytest.fixture
def bed(hosts):
    return hosts(2, "1gbit")


def launched(bed, folder, words, env, python=PROGRAM[0]):
    line = [str(Path(python).parent / "mpiexec"), *reached(bed, env), python, *PROGRAM[1:], *words, "--out", str(folder / "run")]
    return stored(bed.run(0, line, 60, environment()), folder)


def ratios(row):
    """What left and entered each host, in parts of what must have."""
    hosts = row.evidence["moved"]["hosts"].values()
    return [host[way]["ratio"] for host in hosts for way in ("out", "in") if host[way]["at_least_bytes"]]


DIRECTIONS = pytest.mark.parametrize(("words", "directions"), [
    (["allreduce"], {"allreduce": 4}), (["p2p", "--window", "2"], {"p2p_latency": 4, "p2p_bandwidth": 2, "p2p_bidirectional": 4}),
], ids=["allreduce", "p2p"])  # fmt: skip


@pytest.mark.often("allreduce-mpi")
@pytest.mark.parametrize("backend", ["mpi", pytest.param("gloo", marks=pytest.mark.long)])
@DIRECTIONS
def test_interfaces_counted_what_was_moved(words, directions, backend, bed, tmp_path):
    check(launched(bed, tmp_path, [*words, "--backend", backend, "--sizes", "4M"], OVER_THE_LINK), directions)


@pytest.mark.impi
@DIRECTIONS
def test_interfaces_counted_what_intel_mpi_moved(words, directions, bed, impi_python, tmp_path):
    over = {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "eth0"}
    found = launched(bed, tmp_path, [*words, "--backend", "mpi", "--sizes", "4M"], over, impi_python)
    check(found, directions)
    assert all(row.ceiling and row.ceiling.limited_by == "NIC eth0 1 Gb/s, TCP" for row in found.rows if row.operation != "p2p_latency")


def check(found, directions):
    assert {row.operation: row.na for row in found.rows} == dict.fromkeys(directions)
    for row in found.rows:
        assert ratios(row) == pytest.approx([1.0] * directions[row.operation], abs=NEAR), row.operation
        assert "other_path" not in row.flags and row.evidence["moved"]["iterations"] > row.n
        assert all("eth0" in host["interfaces"] for host in row.evidence["moved"]["hosts"].values())


def test_an_mpi_that_shares_memory_is_flagged(bed, tmp_path):
    """At 8 bytes the control messages of the ranks hide the bytes; the packet counters show the path."""
    words = ["allreduce", "--backend", "mpi", "--sizes", "8,4M", "-n", "100", "--max-time", "5"]
    found = launched(bed, tmp_path, words, {})
    assert sorted(row.size_bytes for row in found.rows) == [8, 4 << 20]
    for row in found.rows:
        assert "other_path" in row.flags and row.percent_of_ceiling is None
        said = row.evidence["moved"]["other_path"]
        assert said.startswith("mpi moved ") and "shared memory" in said
