"""Ranks that collbench starts itself: their numbers, and invalid variables."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from collbench.errors import UsageError
from collbench.launch.detect import detect_local, is_follower, to_variable
from collbench.launch.info import LaunchInfo
from collbench.launch.spawn import _worker

NODE = LaunchInfo("srun", 1, 3, 0, 1, "tcp://n1", "slurm:7.0", mpi="pmi", hosts=("n1", "n2", "n3"), facts={"srun_mpi": "pmi2"})


def test_the_ranks_of_a_node_follow_those_of_the_nodes_before_it() -> None:
    """The second of three nodes, with four ranks each."""
    found = [_worker(NODE, 4, number) for number in range(4)]
    assert [(one.rank, one.ranks, one.local_rank, one.local_ranks) for one in found] == [(4 + i, 12, i, 4) for i in range(4)]
    assert {(one.mpi, one.facts["worker"]) for one in found} == {(None, "4")}
    assert [detect_local({"COLLBENCH_WORKER": to_variable(one)}) for one in found] == found


@pytest.mark.parametrize(
    ("env", "rank", "mpi"),
    [
        ({"COLLBENCH_RANK": "1"}, 1, None),
        ({"PMI_RANK": "2"}, 2, "pmi"),
        ({"OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "0"}, 3, "pmix"),
        ({"COLLBENCH_RANK": "1", "OMPI_COMM_WORLD_RANK": "3", "PMI_RANK": "0"}, 1, None),
    ],
)
def test_a_rank_takes_its_number_from_the_nearest_launcher(env: dict[str, str], rank: int, mpi: str | None) -> None:
    env = {"COLLBENCH_LOCAL": "/tmp/collbench-x", "COLLBENCH_RANKS": "4", **env}
    found = detect_local(env)
    assert found and (found.rank, found.ranks, found.mpi, found.secret) == (rank, 4, mpi, "/tmp/collbench-x/secret")
    assert is_follower(env) == (rank != 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 12},
        {"rank": -1},
        {"local_rank": 4},
        {"local_rank": -1},
        {"local_ranks": 13},
        {"rank": "1"},
        {"facts": {"a": 1}},
        {"hosts": [1]},
    ],
)
def test_an_impossible_worker_is_rejected(changes: dict[str, object]) -> None:
    values = {**asdict(replace(_worker(NODE, 4, 1))), **changes}
    with pytest.raises(UsageError, match="COLLBENCH_WORKER"):
        detect_local({"COLLBENCH_WORKER": json.dumps(values)})
