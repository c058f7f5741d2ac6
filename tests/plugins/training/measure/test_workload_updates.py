"""Servers and workers of asynchronous training, over queues instead of a network: sums to the last element, staleness by hand."""

import queue
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from collbench.backends.simulated import SimulatedBackend
from collbench.errors import RunFailed, UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.operations.dtypes import DTYPES
from collbench.operations.unsupported import ServersUnsupported
from collbench.plugins.training import servers
from collbench.plugins.training import servers as workload_asynchronous
from collbench.plugins.training.servers import Shard, Worker, differences, gradient, roles_of, total
from collbench.plugins.training.workloads.step import Exchange, Step

KINDS = ("float64", "float32", "bfloat16", "float8_e5m2", "int32")
NIC = Ceiling("network", 120.0, "NIC eth0")


def step(sizes=(400, 200), servers=(0,), worker=1, dtype="float32"):
    """Every server gets pieces of these sizes from the worker, and sends the whole back in one."""
    pushes = [Exchange("p2p_bandwidth", ((worker, server),), size, "push", dtype=dtype) for size in sizes for server in servers]
    pulls = [Exchange("p2p_bandwidth", ((server, worker),), sum(sizes), "pull", dtype=dtype) for server in servers]
    return Step((*pushes, *pulls), payload_bytes=2 * sum(sizes) * len(servers))


def carry(server_talk, worker_talk):
    """Both sides of one conversation, message by message, until both wait or have ended; what was received is a copy."""
    here, there = next(server_talk, None), next(worker_talk, None)
    while here is not None and there is not None:
        source, target = (there, here) if here.receive else (here, there)
        assert source.receive != target.receive and len(source.data) == len(target.data)
        target.data[:] = source.data
        here, there = next(server_talk, None), next(worker_talk, None)
    return here, there


class ScriptedWorkers:
    """Workers with rounds in a chosen order; a round has two halves: the push, then the pull."""

    def __init__(self, roles):
        self.roles, self.shard = roles, Shard(roles, 0)
        self.pupils = {rank: Worker(roles, rank) for rank in roles.workers}
        self.talks = {rank: self.shard.serve(rank) for rank in roles.workers}
        self.waiting = {rank: next(talk) for rank, talk in self.talks.items()}
        self.rounds = Counter()

    def round(self, rank, number=None):
        self.rounds[rank] += 1
        (talk,) = self.pupils[rank].round(number or self.rounds[rank]).values()
        for there in talk:
            here = self.waiting[rank]
            source, target = (there, here) if here.receive else (here, there)
            target.data[:] = source.data
            self.waiting[rank] = next(self.talks[rank])


@pytest.mark.parametrize("dtype", KINDS)
def test_the_model_is_the_sum_of_all_updates(dtype):
    width = DTYPES[dtype].size
    roles = roles_of(step((100 * width, 73 * width), dtype=dtype), 4)
    played = ScriptedWorkers(roles)
    for rank in (1, 2, 3, 3, 2, 3):
        played.round(rank)
    assert played.shard.applied == {1: 1, 2: 2, 3: 3}
    assert differences(played.shard.model, total(0, [1, 2, 3]), 0, "sum") == []
    by_hand = gradient(0, 0) + 2 * gradient(1, 0) + 3 * gradient(2, 0)
    assert played.shard.model[: 2 * servers.PERIOD].tolist() == [*by_hand.tolist(), *by_hand.tolist()] and len(played.shard.model) == 173


def test_staleness_is_how_many_updates_of_others_came_in_between_in_values_that_occurred():
    played = ScriptedWorkers(roles_of(step(), 4))
    for rank in (1, 2, 3, 2, 2, 1, 3):
        played.round(rank)
    # 1 pulled after its first; 2, 3, 2, 2 came before its second: 4. 2: after 3 one, then none. 3: after its first 2, 2, 1.
    assert played.shard.staleness == {1: {4: 1}, 2: {1: 1, 0: 1}, 3: {3: 1}}
    assert servers._quantiles(Counter({0: 10, 1: 9, 7: 1})) == {"p50": 0.0, "p95": 1.0, "max": 7.0}
    assert servers._quantiles(Counter()) == {"p50": None, "p95": None, "max": None}


def test_an_update_that_was_lost_added_wrongly_or_out_of_turn_is_named():
    played = ScriptedWorkers(roles_of(step(), 2))
    played.round(1)
    with pytest.raises(RunFailed, match="update 3 of rank 1"):
        played.round(1, number=3)
    played = ScriptedWorkers(roles_of(step(), 3))
    played.round(1)
    played.round(2)
    (lost,) = servers.lost_updates(played.shard, {1: 1, 2: 2}, 0)
    assert lost.sentence().startswith("rank 0: 1 wrong element, first at 2: wanted 2, got 1 (")
    played.shard.model[17] += 1
    right = total(0, [1, 1])
    (wrong,) = differences(played.shard.model, right, 0, "the server's sum")
    assert (wrong.rank, wrong.wrong, wrong.index, wrong.wanted) == (0, 1, 17, str(right[17]))
    missing = differences(played.shard.model, total(0, [1, 2]), 0, "the server's sum")
    assert missing[0].wrong >= 149  # of 150 elements; the one that is one too large may be right by chance


def test_what_workers_pull_in_the_end_is_compared():
    played = ScriptedWorkers(roles_of(step(), 3))
    played.round(1)
    for updates, wrong in (([1, 0], 0), ([1, 1], 150)):
        found = []
        (talk,) = played.pupils[2].compare(updates, 2, found).values()
        assert carry(played.shard.send_updates(), talk) == (None, None)
        assert sum(each.wrong for each in found) == wrong
    assert found[0].hint == "the model that it pulled" and found[0].rank == 2


def test_every_worker_and_server_has_gradients_of_its_own_and_sums_are_wide_enough():
    assert roles_of(step(dtype="bfloat16"), 2).sums.name == "float32"
    assert roles_of(step(dtype="float64"), 2).sums.name == "float64"
    assert servers.exact_updates(DTYPES["float32"]) == 2**24 // 7
    seen = {gradient(worker, server).tobytes() for worker in range(7) for server in range(1)}
    assert len(seen) == 7 and all(gradient(w, s).min() == 1 and gradient(w, s).max() == 7 for w in range(3) for s in range(3))
    roles = roles_of(step((2**30, 2**20)), 3)
    assert roles.bytes_at(0) == 2**30 + 2**20 + 2 * 2 * (2**30 + 2**20)
    assert roles.bytes_at(1) == 2 * (64 * 2**20 + 2**30 + 2**20)
    assert np.dtype(roles.sums.numpy) == np.float32


def test_pieces_larger_than_what_a_worker_sends_from(monkeypatch):
    monkeypatch.setattr("collbench.plugins.training.servers.ROTATION_BYTES", 400)
    pieces = step((1000, 1000, 1000, 52)).exchanges
    back = tuple(Exchange("p2p_bandwidth", ((0, 1),), one.size_bytes, "pull") for one in pieces[:4])
    roles = roles_of(Step((*pieces[:4], *back), 4), 2)
    played = ScriptedWorkers(roles)
    played.round(1)
    assert len(played.pupils[1]._gradients[0]) < roles.elements(0)
    assert differences(played.shard.model, gradient(0, 0), 0, "sum") == []


def test_workers_in_threads_of_their_own_lose_nothing():
    """As over Gloo: a thread per conversation, one at a time between two messages."""
    roles, between = roles_of(step((4000, 4000)), 4), threading.Lock()
    shard, wires = Shard(roles, 0), {rank: (queue.Queue(), queue.Queue()) for rank in roles.workers}

    def hold(talk, into, out, lock):
        while True:
            with lock:
                message = next(talk, None)
            if message is None:
                return
            if message.receive:
                message.data[:] = into.get(timeout=20)
            else:
                out.put(message.data.copy())

    def work(rank):
        pupil, (there, back) = Worker(roles, rank), wires[rank]
        for number in range(1, 31):
            (talk,) = pupil.round(number).values()
            hold(talk, back, there, threading.Lock())
        (talk,) = pupil.farewell().values()
        hold(talk, back, there, threading.Lock())

    threads = [threading.Thread(target=work, args=(rank,)) for rank in roles.workers]
    threads += [threading.Thread(target=hold, args=(shard.serve(rank), *wires[rank], between)) for rank in roles.workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert shard.applied == dict.fromkeys(roles.workers, 30)
    assert differences(shard.model, total(0, [30, 30, 30]), 0, "sum") == []
    assert all(sum(seen.values()) == 29 for seen in shard.staleness.values())


def test_several_servers_have_a_shard_each():
    pushes = step(servers=(0, 3), worker=1)
    roles = roles_of(pushes, 5)
    assert (roles.servers, roles.workers) == ((0, 3), (1, 2, 4))
    assert (roles.elements(1), roles.largest, roles.moved_bytes(pushes, 5)) == (150, 150, 2 * 2 * 600)
    assert set(Worker(roles, 4).round(1)) == {0, 3}


def test_what_is_no_asynchronous_training_or_has_too_many_messages_is_refused():
    with pytest.raises(UsageError, match="1,000,000,001 exchanges"):
        roles_of(Step((Exchange("p2p_bandwidth", ((1, 0),), 4, "x", 10**9), Exchange("p2p_bandwidth", ((0, 1),), 4, "x")), 4), 2)
    with pytest.raises(UsageError, match="between workers and servers"):
        roles_of(Step((Exchange("allreduce", ((0, 1, 2),), 4, "x"),), 4), 3)
    with pytest.raises(UsageError, match=r"rank 1 only, .* 2 and 0"):
        roles_of(Step((*step().exchanges, Exchange("p2p_bandwidth", ((2, 0),), 4, "x")), 4), 3)
    with pytest.raises(UsageError, match="besides 1 server"):
        roles_of(step(), 1)
    assert roles_of(step(), 2).refusal(SimulatedBackend()) == ServersUnsupported("simulated", "simulated", servers.CAPABLE)


def test_rounds_of_two_kinds_are_doubtful():
    paces = np.random.default_rng(1).normal([1e-5] * 60 + [4e-3] * 60, 1e-7).tolist()
    actual = workload_asynchronous._report(workload_asynchronous.RankReport(round_s=paces, pupil=object()), [])
    assert "two_modes" in actual["doubts"] and actual["rounds"] == 120
    assert workload_asynchronous._report(workload_asynchronous.RankReport(shard=Shard(roles_of(step(), 2), 0)), [])["doubts"] == []


@pytest.mark.parametrize(("servers", "hosts", "found", "rate"), [
    ((0,), "abc", NIC, 120),
    ((0, 1, 2), "abcde", NIC, 80),  # two workers feed three servers
    ((0, 1), "abcc", NIC, 60),  # two workers behind one NIC
    ((0, 1, 2), "abcde", Ceiling("given", 120.0, "the ceiling given"), 120), ((0,), "aab", NIC, None),
])  # fmt: skip
def test_the_ceiling_is_what_the_workers_hosts_can_send_to_a_server(servers, hosts, found, rate, monkeypatch):
    asked = []
    monkeypatch.setattr(workload_asynchronous, "members_of", lambda backend, world: [SimpleNamespace(host=each) for each in hosts])
    roles = roles_of(step(servers=servers, worker=max(servers) + 1), len(hosts))
    ceilings = SimpleNamespace(of=lambda *about: asked.append(about[-1]) or (found, None))
    actual = workload_asynchronous._ceiling(roles, SimpleNamespace(name="mpi"), ceilings, None)
    assert (actual.bytes_per_s, asked) == (rate, [((roles.workers[0], 0),)] if rate else [])
