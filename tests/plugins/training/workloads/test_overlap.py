"""A step with a timeline on a link of known rate takes as long as the rate and the bytes give, with what overlaps counted once."""

import json

import pytest

from tests.cli.command import BIN, PROGRAM, ROOT, environment
from tests.launchers.test_bytes_across_hosts import MPICH
from tests.plugins.training.reading import read_workload

RANK = str(ROOT / "tests/plugins/training/measure/workload_rank.py")
LINK, BURST = "250mbit", "32kb"  # slow, so that work of other processes on this machine delays little
NEAR = 0.05
RATE = 250e6 / 8 * 1448 / 1514  # payload bytes per second
SMALL, LARGE = 2_400_000, 12_000_000  # a kernel holds all of the small message, and takes it at once; not of the large one
SHORT_S, LONG_S = 0.02, 0.2


def all_at_once(compute_s):
    return [["start", 0], ["start", 1], ["compute", compute_s], ["wait", 0], ["wait", 1]]


def one_by_one(compute_s):
    return [["start", 0], ["wait", 0], ["start", 1], ["wait", 1], ["compute", compute_s]]


pytestmark = [
    pytest.mark.hosts,
    pytest.mark.skipif(not (BIN / "mpiexec").exists(), reason="no MPICH in this environment: pip install collbench[mpich]"),
]


def measured(bed, backend, size, timeline, out):
    """Measure a step of two ranks, one per host: two messages in opposite directions, by the timeline of both ranks."""
    exchanges = [{"operation": "p2p_message", "groups": [pair], "size_bytes": size, "what": f"to {pair[1]}"} for pair in ([0, 1], [1, 0])]
    asked = json.dumps({
        "backends": [backend], "ranks": 2, "out": str(out), "parts": False, "ceiling": RATE / 1e9, "max_time_s": 6, "iterations": 20,
        "trainings": [{"exchanges": exchanges, "timeline": [timeline] * 2}],
    })  # fmt: skip
    reach = ["-launcher", "ssh", "-launcher-exec", bed.rsh, "-hosts", ",".join(bed.names), "-ppn", "1", "-iface", "eth0"]
    passed = [word for name, value in MPICH.items() for word in ("-genv", name, value)]
    line = [str(BIN / "mpiexec"), *reach, "-n", "2", *passed, PROGRAM[0], RANK, asked]
    done = bed.run(0, line, 60, environment({}))
    assert done.returncode == 0, done.stdout + done.stderr
    _, (row,), _ = read_workload(out)
    assert (row.checked, row.wrong) == (1, 0) and "no_overlap" not in row.flags
    return row


def quickest_s(row):
    """Return the seconds of the step that other processes on this machine disturbed least."""
    return row.time_s.min


@pytest.mark.long
def test_started_messages_and_computing_overlap(hosts, tmp_path):
    row = measured(hosts(2, LINK, BURST), "gloo", SMALL, all_at_once(SHORT_S), tmp_path / "run")
    assert row.ceiling_time_s == pytest.approx(SMALL / RATE, rel=1e-6)
    assert quickest_s(row) == pytest.approx(row.ceiling_time_s, rel=NEAR)


@pytest.mark.long
def test_what_is_waited_for_at_once_does_not_overlap(hosts, tmp_path):
    row = measured(hosts(2, LINK, BURST), "gloo", SMALL, one_by_one(SHORT_S), tmp_path / "run")
    assert quickest_s(row) == pytest.approx(2 * SMALL / RATE + SHORT_S, rel=NEAR)


@pytest.mark.long
def test_a_library_without_progress_shows_no_overlap_with_computing(hosts, tmp_path):
    """MPICH sends a large message while both ranks are inside a call, so the messages overlap each other, but not the computing."""
    row = measured(hosts(2, LINK, BURST), "mpi", LARGE, all_at_once(LONG_S), tmp_path / "run")
    assert row.ceiling_time_s == pytest.approx(LARGE / RATE, rel=1e-6)
    assert quickest_s(row) == pytest.approx(LARGE / RATE + LONG_S, rel=NEAR)
