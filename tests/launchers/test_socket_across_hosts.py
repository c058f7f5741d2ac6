"""Plain TCP under srun, over a link of 1 Gbit/s: it measures the payload rate, 1448 of 1514 bytes of a frame, and reports the link."""

import pytest

from tests.cli.command import PROGRAM, environment
from tests.conftest import sample
from tests.launchers.stored import stored
from tools.benchmarks.trials.gallery import LINK_BYTES_PER_S, PAYLOAD

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(120)]

SIZE, WINDOW, BURST = 4 << 20, 8, 256 << 10
MOST = PAYLOAD * (1 + BURST / (WINDOW * SIZE))  # while a window's answer is under way, the shaper may save up one burst
UNSET = {"COLLBENCH_ITERATIONS": "", "COLLBENCH_WARMUP": ""}


@pytest.mark.parametrize("streams", sample([1, 3], 1))
def test_it_reads_the_links_rate(streams, slurm_hosts, tmp_path):
    asked = ["--sizes", str(SIZE), "--window", str(WINDOW), "--streams", str(streams), "--max-time", "2", "--out", str(tmp_path / "run")]
    found = stored(
        slurm_hosts.srun(["-N2", "--mpi=none"], [*PROGRAM, "p2p", "--backend", "socket", *asked], 100, environment(UNSET)), tmp_path
    )
    assert {row.operation for row in found.rows} == {"p2p_latency", "p2p_bandwidth", "p2p_bidirectional"}
    for row in found.rows:
        assert (row.na, row.wrong, row.streams, row.nodes) == (None, 0, streams, 2)
        assert row.ceiling and row.ceiling.limited_by == "NIC eth0 1 Gb/s, TCP"
        assert row.evidence["libraries"]["interface"] == "eth0"
        if row.operation != "p2p_latency":  # while one direction rests, the shaper saves up a burst for it
            # several streams share the link as it pleases them, and the last one's end is the message's end
            least = 0.93 if streams == 1 else 0.8
            assert row.busbw_bytes_per_s and row.busbw_bytes_per_s / LINK_BYTES_PER_S <= MOST, row
            fastest = row.busbw_bytes_per_s * row.time_s.p50 / row.time_s.min  # a busy machine slows the others
            assert fastest / LINK_BYTES_PER_S >= least, row
