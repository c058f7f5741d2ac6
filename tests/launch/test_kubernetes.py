"""Pods: the rank and number of ranks from a Job's variables, and errors that prevent that each pod measures alone."""

import socket
import threading

import pytest
from msgspec.structs import replace

# pytest rewrites the asserts of collbench when it imports a module, and ast.parse of CPython 3.11 can fail in two threads at a time.
# So the modules that the threads below need are imported here.
import collbench.control.client
import collbench.control.server  # noqa: F401
from collbench.addresses import free_port
from collbench.control import addresses
from collbench.control.world import World
from collbench.errors import UsageError
from collbench.launch.detect import LocalRequest, detect, to_variable
from collbench.launch.spawn import node_workers
from tests.launch import captured

SECRET = "6f1d2a34-5b6c-4d7e-8f90-123456789abc"
POD = {"JOB_COMPLETION_INDEX": "1", "COLLBENCH_PODS": "3", "MASTER_ADDR": "bench-0.bench", "COLLBENCH_SECRET": SECRET}
TRAIN = {
    "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "t-node-0-0.t", "PET_MASTER_PORT": "29500",
    "JOB_COMPLETION_INDEX": "1", "COLLBENCH_SECRET": SECRET,
}  # fmt: skip


def found(env, ranks=None):
    info = detect(env, LocalRequest(ranks))
    assert info
    return info


UNDER_TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500"}
ALONE = {"JOB_COMPLETION_INDEX": "0", "COLLBENCH_PODS": "1"}


# Ranks: rank, number of ranks, local rank, number of local ranks. Place: meeting point and port.
@pytest.mark.parametrize(("env", "launcher", "ranks", "place", "facts"), [
    (POD, "kubernetes", (1, 3, 0, 1), ("tcp://bench-0.bench", None), {"kubernetes": "indexed Job"}),
    (TRAIN, "kubernetes", (1, 2, 0, 1), ("tcp://t-node-0-0.t", 29500), {"kubernetes": "TrainJob"}),
    ({**TRAIN, **UNDER_TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "torchrun", (3, 4, 1, 2), ("tcp://h", None),
        {"variables": "torchrun"}),
    ({**POD, **captured.PRTE}, "mpirun", (2, 3, 1, 3), ("tcp://bench-0.bench", None), {"mpirun": "Open MPI"}),
    (ALONE, "kubernetes", (0, 1, 0, 1), ("tcp://127.0.0.1", None), {"kubernetes": "indexed Job"}),
], ids=["indexed Job", "TrainJob", "TrainJob with torchrun", "MPIJob", "alone"])  # fmt: skip
def test_the_launch_of_a_pod(env, launcher, ranks, place, facts):
    info = found(env)
    assert (info.launcher, (info.rank, info.ranks, info.local_rank, info.local_ranks)) == (launcher, ranks)
    assert ((info.meeting, info.port), info.facts) == (place, facts)
    assert found({"COLLBENCH_WORKER": to_variable(info)}) == info


def test_pods_of_a_job_have_one_token_and_a_node_each_and_one_alone_may_start_ranks_itself():
    assert (found(POD).node, found(POD).mpi, found(POD).token) == ("1", None, found({**POD, "JOB_COMPLETION_INDEX": "0"}).token)
    assert detect(ALONE, LocalRequest(ranks=4)) is None


def test_a_pod_becomes_the_ranks_of_its_node(monkeypatch):
    started = []

    class Recorder:
        def __init__(self, children, **_):
            started.extend(found(child.env) for child in children)

        def run(self):
            return 0

    monkeypatch.setattr("collbench.launch.spawn.Supervisor", Recorder)
    assert node_workers(found(POD), 2, ["allreduce"], POD) == 0
    ranks = [(one.launcher, one.rank, one.ranks, one.local_rank, one.local_ranks, one.node) for one in started]
    assert ranks == [("kubernetes", 2, 6, 0, 2, "1"), ("kubernetes", 3, 6, 1, 2, "1")]


@pytest.mark.parametrize(("env", "why"), [
    *(({name: value for name, value in POD.items() if name != missing}, f"{missing} is not")
        for missing in ("COLLBENCH_PODS", "MASTER_ADDR", "COLLBENCH_SECRET", "JOB_COMPLETION_INDEX")),
    ({**POD, "JOB_COMPLETION_INDEX": "3"}, "JOB_COMPLETION_INDEX=3 "), ({**POD, "COLLBENCH_PODS": "many"}, "COLLBENCH_PODS='many'"),
    ({**TRAIN, "PET_NNODES": "1:4"}, "PET_NNODES='1:4'"), ({**TRAIN, "PET_MASTER_PORT": "70000"}, "PET_MASTER_PORT=70000"),
])  # fmt: skip
def test_a_pod_that_would_measure_alone_or_has_invalid_variables_is_refused(env, why):
    with pytest.raises(UsageError, match=why):
        detect(env)


def test_ranks_that_a_pod_starts_itself():
    assert detect({"JOB_COMPLETION_INDEX": "0"}, LocalRequest(ranks=2)) is None
    assert detect({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) is None  # a pod without a job
    with pytest.raises(UsageError, match=r"--ranks 4 .*kubernetes started 3"):
        detect(POD, LocalRequest(ranks=4))


class TestName:
    """The name of rank 0's pod, which other pods can resolve some seconds after their start."""

    def test_is_waited_for_and_not_without_end(self, monkeypatch):
        answers = iter([(), (), ("10.0.0.5",)])
        monkeypatch.setattr(addresses, "resolve", lambda host: next(answers))
        monkeypatch.setattr(addresses, "_RETRY_S", 0.0)
        assert addresses.await_name("tcp://bench-0.bench", 30.0)
        monkeypatch.undo()
        assert not addresses.await_name("tcp://no.such.host.invalid", 0.0)

    @pytest.mark.contract
    def test_that_resolves_late_lets_the_ranks_join(self, monkeypatch):
        monkeypatch.setenv("COLLBENCH_SECRET", SECRET)
        port = free_port("127.0.0.1")  # the port that follows from the variables may be that of the same test in another checkout
        known, ask = threading.Event(), socket.getaddrinfo

        def late(host, *rest, **more):
            if host == "bench-0.bench":
                if not known.is_set():
                    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
                host = "127.0.0.1"
            return ask(host, *rest, **more)

        monkeypatch.setattr(socket, "getaddrinfo", late)
        pods = [found({**POD, "COLLBENCH_PODS": "2", "JOB_COMPLETION_INDEX": str(i)}) for i in range(2)]
        worlds = []
        ranks = [threading.Thread(target=lambda i=i: worlds.append(World(replace(pods[i], port=port), 20.0))) for i in range(2)]
        for rank in ranks:
            rank.start()
        ranks[1].join(0.5)
        assert not worlds  # no rank has ended, and none has joined
        known.set()
        for rank in ranks:
            rank.join(20)
        try:
            assert sorted(world.rank for world in worlds) == [0, 1]
            assert {len(world.members) for world in worlds} == {2}
        finally:
            for world in sorted(worlds, key=lambda world: -world.rank):
                world.close()
