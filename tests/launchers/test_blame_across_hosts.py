"""Four hosts, of which the third sends at half the rate: ranks of other hosts finish last, and none of them is called slow."""

from contextlib import ExitStack

import pytest

from collbench.analysis.stragglers import Role, SlowLink, slow_links, stragglers
from collbench.results.reader import read_run
from tests.conftest import ROOT, enter
from tests.testbeds import Hosts, SlurmBed
from tools.benchmarks.trials.gallery import OVER_THE_LINK

pytestmark = [pytest.mark.long, pytest.mark.slurm, pytest.mark.timeout(180)]

RATE_MBIT, SLOWED_MBIT, SLOW = 200, 100, 2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blame") / "run"
    program = [str(ROOT / ".venv/bin/python"), "-m", "collbench", "allreduce", "--sizes", "256K", "--max-time", "2"]
    with ExitStack() as stack:
        hosts = enter(stack, Hosts(4, f"{RATE_MBIT}mbit"))
        slurm = enter(stack, SlurmBed(hosts))
        shape = ("root", "tbf", "rate", f"{SLOWED_MBIT}mbit", "burst", hosts.burst, "latency", "50ms")
        hosts.must("tc", "-n", hosts.names[SLOW], "qdisc", "replace", "dev", "eth0", *shape)
        done = slurm.srun(["-N4", "--mpi=pmi2"], [*program, "--out", str(folder), "--quiet"], timeout=120, env=OVER_THE_LINK["pmi2"])
        assert done.returncode == 0, done.stderr
    return read_run(folder)


def test_the_slower_link_is_named_and_ranks_that_end_last_wait_for_it(run):
    link = SlowLink(run.info["hosts"][SLOW], "eth0", SLOWED_MBIT * 1e6, RATE_MBIT * 1e6)
    assert slow_links(run) == [link]
    assert all((each.role, each.link) == (Role.WAITS, link) for each in stragglers(run))


def test_without_knowing_the_link_no_rank_is_called_slow(run, tmp_path):
    (run.path / "topology.json").rename(tmp_path / "topology.json")
    assert all(each.role is Role.UNKNOWN for each in stragglers(run))
