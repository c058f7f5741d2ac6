"""ZeroMQ under srun, over a link of 1 Gbit/s: it measures the payload rate, 1448 of 1514 bytes of a frame, and reports the link."""

from pathlib import Path

import pytest

from tests.cli.command import PROGRAM, environment
from tests.launchers.stored import stored
from tests.testbeds import SlurmBed
from tools.benchmarks.trials.gallery import LINK_BYTES_PER_S, PAYLOAD

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(120)]

SIZE, WINDOW, BURST = 1 << 20, 32, 256 << 10
MOST = PAYLOAD * (1 + BURST / (WINDOW * SIZE))  # while a window's answer is under way, the shaper may save up one burst
# Both ways less: a message is taken over when it is whole, and each rank has the other's answers to send among its own.
LEAST = {"p2p_bandwidth": 0.93, "p2p_bidirectional": 0.9}
UNSET = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}


def test_it_reads_the_links_rate(slurm_hosts: SlurmBed, tmp_path: Path) -> None:
    asked = ["--sizes", str(SIZE), "--window", str(WINDOW), "--max-time", "2", "--out", str(tmp_path / "run")]
    line = [*PROGRAM, "p2p", "--backend", "zmq", *asked]
    found = stored(slurm_hosts.srun(["-N2", "--mpi=none"], line, 100, environment(UNSET)), tmp_path)
    assert {row.operation for row in found.rows} == {"p2p_latency", "p2p_bandwidth", "p2p_bidirectional"}
    for row in found.rows:
        assert (row.na, row.wrong, row.nodes) == (None, 0, 2)
        assert row.ceiling and row.ceiling.limited_by == "NIC eth0 1 Gb/s, TCP"
        assert (row.evidence["libraries"]["interface"], row.evidence["libraries"]["tcp_nodelay"]) == ("eth0", "1")
        if row.operation != "p2p_latency":  # while one direction rests, the shaper saves up a burst for it
            assert row.busbw_bytes_per_s and row.busbw_bytes_per_s / LINK_BYTES_PER_S <= MOST, row
            fastest = row.busbw_bytes_per_s * row.time_s.p50 / row.time_s.min  # a busy machine slows the others
            assert fastest / LINK_BYTES_PER_S >= LEAST[row.operation], row
