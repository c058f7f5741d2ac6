"""Two nodes with two ranks each, as torchrun and srun start them: rank 0 hears the other node through its first rank alone."""

import json
import sys

import pytest

from tests.cli.command import ROOT, environment

pytestmark = [pytest.mark.hosts, pytest.mark.long]

SECRET = {"COLLBENCH_SECRET": "of the tests, long enough", "PYTHONPATH": str(ROOT)}
PROGRAM = """
import json, os, sys
import numpy as np
from collbench.launch.detect import detect
from collbench.control.world import World
world = World(detect(os.environ), 20.0)
gathered = world.allgather([world.rank, world.info.local_rank, world.me.host], "agreeing")
children = [sorted(child.ranks) for child in world._server.coordinator.down.children.values()] if world.rank == 0 else []
sums = []
world.gather_into(np.full(100_000, float(world.rank)), "adding up", lambda rank, array: sums.append([rank, float(array.sum())]))
if world.rank == 0:
    print(json.dumps({"gathered": gathered, "sums": sorted(sums), "children": sorted(children), "remarks": world.remarks()}))
world.close()
"""


def checked(printed, hosts):
    (found,) = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert found["gathered"] == [[0, 0, hosts[0]], [1, 1, hosts[0]], [2, 0, hosts[1]], [3, 1, hosts[1]]]
    assert found["sums"] == [[rank, rank * 100_000.0] for rank in (1, 2, 3)]
    assert found["children"] == [[1], [2, 3]]
    assert found["remarks"] == []


def program(folder):
    (folder / "program.py").write_text(PROGRAM)
    return ["timeout", "60", sys.executable, str(folder / "program.py")]


@pytest.mark.parametrize("elastic", [True, False], ids=["torchrun", "by hand"])
def test_with_the_variables_of_torchrun(elastic, hosts, tmp_path):
    bed = hosts(2, "1gbit")
    common = {**SECRET, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": bed.addresses[0], "MASTER_PORT": "29534"}
    started = []
    for rank in (3, 1, 0, 2):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(rank // 2)}
        more = {"TORCHELASTIC_RUN_ID": "none"} if elastic else {}
        started.append(bed.start(rank // 2, program(tmp_path), environment({**common, **place, **more})))
    ended = [one.communicate(timeout=70) for one in started]
    assert [one.returncode for one in started] == [0] * 4, ended
    checked("".join(out for out, _ in ended), bed.names)


@pytest.mark.slurm
def test_with_srun(slurm_hosts, tmp_path):
    done = slurm_hosts.srun(["-N2", "-n4", "--ntasks-per-node=2", "--mpi=none"], program(tmp_path), env=environment(SECRET))
    assert done.returncode == 0, done.stdout + done.stderr
    checked(done.stdout, slurm_hosts.nodes)


@pytest.mark.slurm
def test_two_nodes_of_slurm_on_one_host_are_two_nodes(slurm_one_host, tmp_path):
    env = environment({**SECRET, "MASTER_ADDR": "127.0.0.1"})
    done = slurm_one_host.srun(["-N2", "-n4", "--ntasks-per-node=2", "--mpi=none"], program(tmp_path), env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert found["children"] == [[1], [2, 3]]
