"""Parameter servers: workers and servers alone talk to one another, all shards go there and come back."""

import pytest

from collbench.errors import UsageError
from collbench.workloads.parameter_server import Roles, roles
from collbench.workloads.registry import regime_named
from collbench.workloads.shape import shape_of
from tests.workloads.laid import described, laid_out

SERVER = regime_named("parameter-server")


def who(hosts, **typed):
    return roles(shape_of(SERVER, typed, hosts))


def test_one_server_gets_the_gradients_of_two_workers_and_gives_the_model_to_both():
    push, pull = laid_out("parameter-server", {"model": "1000"}, (0, 1, 2)).exchanges
    assert described(push) == described(pull) == ("alltoallv", ((0, 1, 2),), 2 * 1000 * 4, 1)
    assert push.traffic.matrix == ((0, 0, 0), (4000, 0, 0), (4000, 0, 0))
    assert pull.traffic.matrix == ((0, 4000, 4000), (0, 0, 0), (0, 0, 0))
    assert (push.adds, pull.adds) == (True, False)


def test_shards_go_to_every_server_and_the_odd_gradient_to_the_first():
    push, pull = laid_out("parameter-server", {"model": "7", "update": "sharded"}, (0, 1, 2, 3)).exchanges
    assert push.traffic.matrix == ((0, 0, 0, 0), (0, 0, 0, 0), (4 * 4, 3 * 4, 0, 0), (4 * 4, 3 * 4, 0, 0))
    assert pull.traffic.matrix == tuple(zip(*push.traffic.matrix, strict=True))
    assert push.size_bytes == 2 * 4 * 4  # what the first server gets, more than a worker's 7 × 4


def test_a_single_worker_is_the_busiest_of_several_servers():
    push, _ = laid_out("parameter-server", {"model": "8", "update": "sharded"}, (0, 1, 2)).exchanges
    assert push.size_bytes == 8 * 4


def test_all_pushes_in_buckets_then_all_pulls():
    step = laid_out("parameter-server", {"model": "25", "bucket": "40"}, (0, 1))
    assert [(one.what, one.size_bytes, one.times) for one in step.exchanges] == [
        ("gradients to the servers, buckets 1 to 2 of 3", 10 * 4, 2),
        ("gradients to the servers, bucket 3 of 3", (25 - 2 * 10) * 4, 1),
        ("the model from the servers, buckets 1 to 2 of 3", 10 * 4, 2),
        ("the model from the servers, bucket 3 of 3", (25 - 2 * 10) * 4, 1),
    ]
    assert step.payload_bytes == (25 + 25) * 4
    assert step.note == "one server keeps the model and sums the gradients of 1 worker"


def test_asynchronously_a_step_is_the_round_of_one_worker_in_messages():
    step = laid_out("parameter-server", {"model": "7", "update": "asynchronous", "servers": "2"}, (0, 1, 2, 3))
    assert [described(one) for one in step.exchanges] == [
        ("p2p_bandwidth", ((2, 0),), 4 * 4, 1),
        ("p2p_bandwidth", ((2, 1),), 3 * 4, 1),
        ("p2p_bandwidth", ((0, 2),), 4 * 4, 1),
        ("p2p_bandwidth", ((1, 2),), 3 * 4, 1),
    ]
    assert "one of 2 workers" in step.note


def test_only_asynchronous_is_asynchronous():
    said = {
        update: SERVER.asynchronous(shape_of(SERVER, {"update": update}, (0, 1))) for update in ("synchronous", "asynchronous", "sharded")
    }
    assert said == {"synchronous": False, "asynchronous": True, "sharded": False}


@pytest.mark.parametrize(
    ("hosts", "typed", "servers"),
    [
        ((0, 1, 2), {}, (0,)),
        ((0, 0, 1, 1), {"servers": "2"}, (0, 2)),  # one on each host
        ((0, 0, 1, 1), {"servers": "3"}, (0, 1, 2)),
        ((0, 0, 1, 1), {"update": "sharded"}, (0, 2)),
        ((0, 1, 0, 1), {"servers": "2"}, (0, 1)),
    ],
)
def test_servers_are_spread_over_the_hosts_and_all_others_are_workers(hosts, typed, servers):
    assert who(hosts, **typed) == Roles(servers, tuple(rank for rank in range(len(hosts)) if rank not in servers))


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ({"servers": "3"}, "parameter-server with 3 servers among 3 ranks leaves no workers: choose --servers 1 to 2"),
        ({"servers": "1", "update": "sharded"}, "--update sharded with one server has no shards: choose --servers 2 or more"),
        ({"update": "lazy"}, "--update 'lazy' is unknown: choose from synchronous, asynchronous, sharded"),
        ({"servers": "2", "model": "1"}, "2 servers cannot share 1 parameter: choose fewer --servers or a larger --model"),
        ({"servers": "0"}, "--servers '0' is not valid"),
    ],
)
def test_what_leaves_no_worker_or_means_nothing_is_refused(typed, why):
    with pytest.raises(UsageError) as caught:
        laid_out("parameter-server", typed, (0, 1, 2))
    assert str(caught.value).startswith(why)
