"""What each regime exchanges, by hand: operations, groups, sizes and times; and the shapes that it refuses, with the remedy."""

import pytest

from collbench.errors import UsageError
from collbench.plugins.training.workloads.data_parallel import buckets, units
from collbench.plugins.training.workloads.parameter_server import Roles, roles
from collbench.plugins.training.workloads.registry import regime_named, regimes
from collbench.plugins.training.workloads.shape import shape_of
from collbench.plugins.training.workloads.step import Compute, Exchange, Shape, Start, Wait
from tests.plugins.training.workloads.laid import MIB, described, laid_out

GRADIENTS = 340 * 10**6 * 4  # of bert-large in float32, as all of these
WHOLE = GRADIENTS // (25 * MIB)
LAYER = 4 * (1024 * 1024 + 1024) + 1024 * 4096 + 4096 + 4096 * 1024 + 1024 + 2 * 2 * 1024
REST = 340 * 10**6 - 24 * LAYER
ACTIVATION = 1024 * 512 * 4
SMALL = {"layers": "3", "hidden": "8", "sequence": "12", "top_k": "1"}  # of expert-parallel
TOKEN = 8 * 4  # bytes
PAIR, TRIO, FOUR, TWO_HOSTS = ((0, 1),), ((0, 1, 2),), ((0, 1, 2, 3),), ((0, 1), (2, 3))
SERVER = regime_named("parameter-server")


@pytest.mark.parametrize(("name", "typed", "hosts", "exchanges", "payload"), [
    ("data-parallel", {}, (0, 1), [("allreduce", PAIR, 25 * MIB, WHOLE), ("allreduce", PAIR, GRADIENTS - WHOLE * 25 * MIB, 1)],
     GRADIENTS),
    # a bucket beyond the gradients is one bucket, and one is rounded down to whole elements
    ("data-parallel", {"model": "1000", "dtype": "bfloat16"}, (0, 0, 1), [("allreduce", TRIO, 1000 * 2, 1)], 2000),
    ("data-parallel", {"model": "100", "bucket": "43"}, (0, 1), [("allreduce", PAIR, 40, 10)], 400),
    ("fsdp", {}, (0, 0, 1, 1),
     [("allgather", FOUR, REST * 4, 1), ("allgather", FOUR, LAYER * 4, 24), ("allgather", FOUR, LAYER * 4, 24),
      ("reducescatter", FOUR, LAYER * 4, 24), ("reducescatter", FOUR, REST * 4, 1)], 3 * GRADIENTS - REST * 4),
    # a model without layers is one unit
    ("fsdp", {"model": "resnet50"}, (0, 1),
     [(operation, PAIR, 25_557_032 * 4, 1) for operation in ("allgather", "allgather", "reducescatter")], 3 * 25_557_032 * 4),
    ("hierarchical", {"model": str(5 * MIB), "bucket": "8M"}, (0, 0, 1, 1),
     [("reducescatter", TWO_HOSTS, 8 * MIB, 2), ("allreduce", ((0, 2), (1, 3)), 8 * MIB // 2, 2), ("allgather", TWO_HOSTS, 8 * MIB, 2),
      ("reducescatter", TWO_HOSTS, (5 * 4 - 2 * 8) * MIB, 1), ("allreduce", ((0, 2), (1, 3)), (5 * 4 - 2 * 8) * MIB // 2, 1),
      ("allgather", TWO_HOSTS, (5 * 4 - 2 * 8) * MIB, 1)], 5 * 4 * MIB),
    # ranks that take turns on the hosts; an odd number of gradients is padded
    ("hierarchical", {"model": "7"}, (0, 1, 0, 1, 0, 1),
     [("reducescatter", ((0, 2, 4), (1, 3, 5)), (7 + 2) * 4, 1), ("allreduce", ((0, 1), (2, 3), (4, 5)), 3 * 4, 1),
      ("allgather", ((0, 2, 4), (1, 3, 5)), (7 + 2) * 4, 1)], 7 * 4),
    # a stage between two others sends on to one and back to the other
    ("pipeline", {}, (0, 1, 2, 3), [("sendrecv", TWO_HOSTS, ACTIVATION, 8), ("sendrecv", ((1, 2),), ACTIVATION, 8)],
     2 * 8 * ACTIVATION),
    ("pipeline", {"microbatches": "4", "microbatch": "2", "dtype": "float16"}, (0, 1), [("sendrecv", PAIR, 1024 * 512 * 2 * 2, 4)],
     4 * 1024 * 512 * 2 * 2),
    # more ranks than stages: pipelines side by side, host after host; ranks 0 and 2 are the first stage, on host 0
    ("pipeline", {"stages": "2"}, (0, 1, 0, 1), [("sendrecv", TWO_HOSTS, ACTIVATION, 8)], 8 * ACTIVATION),
    ("pipeline", {"model": "7B", "layers": "32", "hidden": "4096", "sequence": "2048", "dtype": "bfloat16"}, (0, 1),
     [("sendrecv", PAIR, 4096 * 2048 * 2, 8)], 8 * 4096 * 2048 * 2),
    ("tensor-parallel", {}, (0, 0, 1, 1), [("allreduce", TWO_HOSTS, ACTIVATION, 2 * 24)] * 2, 4 * 24 * ACTIVATION),
    ("tensor-parallel", {"microbatches": "3", "microbatch": "5", "layers": "2"}, (0, 0),
     [("allreduce", PAIR, 5 * ACTIVATION, 2 * 2 * 3)] * 2, 4 * 2 * 3 * 5 * ACTIVATION),
    ("tensor-parallel", {"tensor": "4"}, (0, 1, 0, 1), [("allreduce", ((0, 2, 1, 3),), ACTIVATION, 48)] * 2, 4 * 24 * ACTIVATION),
    ("tensor-parallel", {"tensor": "2"}, (0, 0, 0, 0), [("allreduce", TWO_HOSTS, ACTIVATION, 48)] * 2, 4 * 24 * ACTIVATION),
    ("expert-parallel", SMALL, (0, 1, 2), [("alltoallv", TRIO, 12 * TOKEN, 3)] * 4, 4 * 3 * 12 * TOKEN),
    ("parameter-server", {"model": "1000"}, (0, 1, 2), [("alltoallv", TRIO, 2 * 1000 * 4, 1)] * 2, 2 * 1000 * 4),
    ("parameter-server", {"model": "25", "bucket": "40"}, (0, 1),
     [("alltoallv", PAIR, 10 * 4, 2), ("alltoallv", PAIR, (25 - 2 * 10) * 4, 1)] * 2, (25 + 25) * 4),
    # a single worker is the busiest of several servers; else what the first server gets may be more than a worker's 7 × 4
    ("parameter-server", {"model": "8", "update": "sharded"}, (0, 1, 2), [("alltoallv", TRIO, 8 * 4, 1)] * 2, 2 * 8 * 4),
    ("parameter-server", {"model": "7", "update": "sharded"}, (0, 1, 2, 3), [("alltoallv", FOUR, 2 * 4 * 4, 1)] * 2, 2 * 7 * 4),
    # asynchronously a step is the round of one worker, in messages
    ("parameter-server", {"model": "7", "update": "asynchronous", "servers": "2"}, (0, 1, 2, 3),
     [("p2p_bandwidth", ((2, 0),), 4 * 4, 1), ("p2p_bandwidth", ((2, 1),), 3 * 4, 1), ("p2p_bandwidth", ((0, 2),), 4 * 4, 1),
      ("p2p_bandwidth", ((1, 2),), 3 * 4, 1)], 2 * 7 * 4),
])  # fmt: skip
def test_a_step(name, typed, hosts, exchanges, payload):
    step = laid_out(name, typed, hosts)
    assert [described(one) for one in step.exchanges] == exchanges
    assert step.payload_bytes == payload
    reduced = {"allreduce": "sum", "reducescatter": "sum"}
    assert [one.redop for one in step.exchanges] == [reduced.get(one.operation) for one in step.exchanges]
    assert {one.dtype for one in step.exchanges} == {typed.get("dtype", "float32")}


@pytest.mark.parametrize(("name", "typed", "hosts", "note"), [
    ("fsdp", {}, (0, 1), ""),
    (
        "fsdp",
        {"model": "10", "layers": "2"},
        (0, 1, 2),
        "units are padded by 1 elements, so that all ranks have parts of the same size",
    ),
    ("fsdp", {"model": "resnet50"}, (0, 1), "one unit: use --layers to set the number of units"),
    ("hierarchical", {}, (0, 0, 1, 1), "2 all-reduces of 2 hosts at the same time share the wire"),
    ("hierarchical", {"model": "7"}, (0, 0, 0, 1, 1, 1), "; the last bucket is padded by 2 of 3 "),
    ("pipeline", {"stages": "2"}, (0, 1, 0, 1), "2 pipelines run in parallel; their gradients are not summed here (see data-parallel)"),
    ("tensor-parallel", {}, (0, 0, 1, 1), "2 groups at the same time; embedding and loss are left out"),
    ("tensor-parallel", {"tensor": "2"}, (0, 1), "one group of all ranks, across hosts"),
    ("expert-parallel", SMALL, (0, 1, 2), "3 experts in each of 3 layers, top 1"),
    ("parameter-server", {}, (0, 1), "one server keeps the model and sums the gradients of 1 worker"),
    ("parameter-server", {"update": "asynchronous", "servers": "2"}, (0, 1, 2, 3), "one of 2 workers"),
])  # fmt: skip
def test_the_note_of_a_step(name, typed, hosts, note):
    found = laid_out(name, typed, hosts).note
    assert note in found if note else not found


@pytest.mark.parametrize(("name", "typed", "what"), [
    ("data-parallel", {}, ["gradients, buckets 1 to 51 of 52", "gradients, bucket 52 of 52"]),
    ("data-parallel", {"model": "1000"}, ["gradients, bucket 1 of 1"]),
    ("data-parallel", {"model": "8", "bucket": "16"}, ["gradients, buckets 1 to 2 of 2"]),
    ("data-parallel", {"model": "6", "bucket": "16"}, ["gradients, bucket 1 of 2", "gradients, bucket 2 of 2"]),
    ("pipeline", {}, [f"activations forward, gradients back: stages {stages}" for stages in ("1-2, 3-4", "2-3")]),
    (
        "parameter-server", {"model": "25", "bucket": "40"},
        [f"{way}, {which}" for way in ("gradients to the servers", "the model from the servers")
         for which in ("buckets 1 to 2 of 3", "bucket 3 of 3")],
    ),
])  # fmt: skip
def test_what_is_exchanged(name, typed, what):
    assert [one.what for one in laid_out(name, typed, (0, 1, 2, 3)).exchanges] == what


@pytest.mark.parametrize(("name", "typed", "hosts", "why"), [
    ("data-parallel", {}, (), "data-parallel over 0 ranks: it needs 2 or more; start more with --ranks"),
    ("data-parallel", {}, (0,), "data-parallel over 1 rank: it needs 2 or more; start more with --ranks"),
    ("fsdp", {}, (0,), "fsdp over 1 rank"),
    ("fsdp", {"model": "100M", "layers": "24", "hidden": "1024"}, (0, 1),
     "24 layers of hidden size 1024 have 302,309,376 parameters, more than the 100,000,000 of model '100M': give fewer --layers"),
    ("fsdp", {"model": "3", "layers": "4"}, (0, 1), "4 layers have 4 parameters, more than the 3 of model '3'"),
    ("hierarchical", {}, (0, 1, 2), "hierarchical over 3 ranks: it needs 4 or more"),
    ("hierarchical", {}, (0, 0, 0, 0),
     "hierarchical over one host has nothing to sum across hosts: start ranks on several hosts, or take data-parallel"),
    ("hierarchical", {}, (0, 1, 2, 3), "hierarchical over one rank per host has nothing to sum inside of one: start 2 or more"),
    ("hierarchical", {}, (0, 0, 0, 1),
     "hierarchical needs equally many ranks on every host, and these have 1 to 3: start equally many"),
    ("hierarchical", {"bucket": "4"}, (0, 0, 1, 1), "--bucket 4 has no room for 2 elements of float32: give 8 bytes or more"),
    ("pipeline", {"stages": "3"}, range(4), "--stages 3 does not divide 4 ranks into a pipeline: choose 2 or 4"),
    ("pipeline", {"stages": "1"}, range(2), "--stages 1 does not divide 2 ranks into a pipeline: choose 2"),
    ("pipeline", {"layers": "3"}, range(4), "4 stages have too few layers, 3 in all: choose --stages 2, or a deeper model"),
    ("pipeline", {}, range(48),
     "48 stages have too few layers, 24 in all: choose --stages 2 or 3 or 4 or 6 or 8 or 12 or 16 or 24, or a deeper model"),
    ("pipeline", {}, range(29), "29 stages have too few layers, 24 in all: give --layers 29 or more, or a deeper model"),
    ("pipeline", {"layers": "1"}, range(2), "2 stages have too few layers, 1 in all: give --layers 2 or more, or a deeper model"),
    ("pipeline", {}, (0,), "pipeline over 1 rank: it needs 2 or more"),
    ("pipeline", {"model": "resnet50"}, range(2),
     "pipeline needs layers, hidden and sequence, which model 'resnet50' does not define: choose bert-large"),
    ("pipeline", {"model": "7B", "layers": "32"}, range(2), "pipeline needs hidden and sequence, which model '7B' does not define"),
    ("tensor-parallel", {}, (0, 1, 2),
     "a tensor-parallel group is the ranks of a host, but every host has only one: start more per host, or use --tensor 3"),
    ("tensor-parallel", {}, (0, 0, 1),
     "a tensor-parallel group is the ranks of a host, but the hosts have different numbers of ranks: use --tensor 3"),
    ("tensor-parallel", {"tensor": "3"}, (0, 0, 1, 1), "--tensor 3 does not divide 4 ranks into groups of 2 and more: choose 2 or 4"),
    ("tensor-parallel", {"tensor": "1"}, (0, 0), "--tensor 1 does not divide 2 ranks into groups of 2 and more: choose 2"),
    ("tensor-parallel", {"model": "resnet50"}, (0, 0), "tensor-parallel needs layers, hidden and sequence"),
    ("tensor-parallel", {}, (0,), "tensor-parallel over 1 rank: it needs 2 or more"),
    ("expert-parallel", {**SMALL, "experts": "4"}, TRIO[0],
     "--experts 4 cannot be shared evenly by 3 ranks: choose a multiple of them, like 6"),
    ("expert-parallel", {**SMALL, "top_k": "4"}, TRIO[0], "--top-k 4 exceeds the number of experts, 3: choose 1 to 3"),
    ("expert-parallel", {**SMALL, "imbalance": "4"}, TRIO[0],
     "--imbalance 4 over 3 ranks with 1 expert each and top 1: one rank's experts can get 1 to 3 times the average"),
    ("expert-parallel", {**SMALL, "imbalance": "2", "top_k": "2"}, TRIO[0],
     "--imbalance 2 over 3 ranks with 1 expert each and top 2: one rank's experts can get 1 to 1.5"),
    ("expert-parallel", {**SMALL, "imbalance": "0.5"}, TRIO[0], "--imbalance '0.5' is not a number from 1 up: 1 is even"),
    ("expert-parallel", {**SMALL, "imbalance": "nan"}, TRIO[0], "--imbalance 'nan'"),
    ("expert-parallel", {**SMALL, "imbalance": "1/0"}, TRIO[0], "--imbalance '1/0'"),
    ("expert-parallel", {**SMALL, "imbalance": "1e9999"}, TRIO[0], "--imbalance '1e9999' is not a number from 1 up"),
    ("expert-parallel", {**SMALL, "seed": "-1"}, TRIO[0], "--seed '-1' is not a valid seed: use a whole number from 0 up"),
    ("expert-parallel", {"model": "resnet50", "layers": "3"}, TRIO[0], "expert-parallel needs hidden"),
    ("parameter-server", {"servers": "3"}, TRIO[0],
     "parameter-server with 3 servers among 3 ranks leaves no workers: choose --servers 1 to 2"),
    ("parameter-server", {"servers": "1", "update": "sharded"}, TRIO[0],
     "--update sharded with one server has no shards: choose --servers 2 or more"),
    ("parameter-server", {"update": "lazy"}, TRIO[0], "--update 'lazy' is unknown: choose from synchronous, asynchronous, sharded"),
    ("parameter-server", {"servers": "2", "model": "1"}, TRIO[0],
     "2 servers cannot share 1 parameter: choose fewer --servers or a larger --model"),
    ("parameter-server", {"servers": "0"}, TRIO[0], "--servers '0' is not valid"),
])  # fmt: skip
def test_a_shape_that_a_regime_refuses(name, typed, hosts, why):
    with pytest.raises(UsageError) as caught:
        laid_out(name, typed, hosts)
    assert str(caught.value).startswith(why)


def test_buckets_need_room_and_layers_of_unknown_width_are_equal_parts_and_what_is_left():
    with pytest.raises(UsageError, match=r"--bucket 3 .*float32: .*4 bytes"):
        buckets(Shape("made up", 10, "float32", 4, 3, (0, 1)))
    shape = shape_of(regime_named("fsdp"), {"model": "103", "layers": "10"}, (0, 1))
    assert [(unit.parameters, unit.times) for unit in units(shape)] == [(3, 1), (10, 10)]
    padded = laid_out("fsdp", {"model": "10", "layers": "2"}, (0, 1, 2))
    assert {one.size_bytes for one in padded.exchanges} == {(5 + 1) * 4}


def received_columns(matrix):
    return [sum(column) for column in zip(*matrix, strict=True)]


def test_experts_get_the_same_share_or_so_many_times_the_average_at_a_rank_that_the_seed_draws():
    assert laid_out("expert-parallel", SMALL, (0, 1, 2)).exchanges[0].traffic.matrix == ((12 // 3 * TOKEN,) * 3,) * 3
    step = laid_out("expert-parallel", {**SMALL, "imbalance": "2"}, (0, 1, 2))
    there, back, there_again, back_again = [one.traffic.matrix for one in step.exchanges]
    assert there == there_again and back == back_again == tuple(zip(*there, strict=True)) != there
    assert sorted(received_columns(there)) == [(36 - 24) // 2 * TOKEN, (36 - 24) // 2 * TOKEN, 2 * 12 * TOKEN]
    assert step.exchanges[0].size_bytes == 2 * 12 * TOKEN
    more = laid_out("expert-parallel", {**SMALL, "top_k": "2", "experts": "6", "imbalance": "3"}, (0, 1, 2))
    assert sorted(received_columns(more.exchanges[0].traffic.matrix)) == [0, 0, 3 * 12 * 2 * TOKEN]

    def busiest(seed):
        step = laid_out("expert-parallel", {**SMALL, "imbalance": "2", "seed": str(seed)}, (0, 1, 2))
        found = received_columns(step.exchanges[0].traffic.matrix)
        return found.index(max(found))

    drawn = [busiest(seed) for seed in range(20)]
    assert set(drawn) == {0, 1, 2}
    assert drawn == [busiest(seed) for seed in range(20)]


@pytest.mark.parametrize(("experts", "top_k", "most"), [("4", "1", 4), ("4", "2", 2), ("8", "2", 4), ("16", "2", 4), ("16", "4", 4)])
def test_a_token_goes_to_each_expert_once_so_that_the_imbalance_has_an_end(experts, top_k, most):
    typed = {**SMALL, "experts": experts, "top_k": top_k}
    step = laid_out("expert-parallel", {**typed, "imbalance": str(most)}, (0, 1, 2, 3))
    assert max(received_columns(step.exchanges[0].traffic.matrix)) == most * 12 * int(top_k) * TOKEN
    with pytest.raises(UsageError, match=f"can get 1 to {most} times the average"):
        laid_out("expert-parallel", {**typed, "imbalance": str(most + 0.5)}, (0, 1, 2, 3))


def test_gradients_go_to_the_servers_and_the_model_comes_back_asynchronously_only_where_asked():
    push, pull = laid_out("parameter-server", {"model": "1000"}, (0, 1, 2)).exchanges
    assert push.traffic.matrix == ((0, 0, 0), (4000, 0, 0), (4000, 0, 0))
    assert pull.traffic.matrix == ((0, 4000, 4000), (0, 0, 0), (0, 0, 0))
    assert (push.adds, pull.adds) == (True, False)
    push, pull = laid_out("parameter-server", {"model": "7", "update": "sharded"}, (0, 1, 2, 3)).exchanges  # the odd one to the first
    assert push.traffic.matrix == ((0, 0, 0, 0), (0, 0, 0, 0), (4 * 4, 3 * 4, 0, 0), (4 * 4, 3 * 4, 0, 0))
    assert pull.traffic.matrix == tuple(zip(*push.traffic.matrix, strict=True))
    for update in ("synchronous", "asynchronous", "sharded"):
        assert SERVER.asynchronous(shape_of(SERVER, {"update": update}, (0, 1))) == (update == "asynchronous")


@pytest.mark.parametrize(("hosts", "typed", "servers"), [
    ((0, 1, 2), {}, (0,)),
    ((0, 0, 1, 1), {"servers": "2"}, (0, 2)),  # one on each host
    ((0, 0, 1, 1), {"servers": "3"}, (0, 1, 2)), ((0, 0, 1, 1), {"update": "sharded"}, (0, 2)), ((0, 1, 0, 1), {"servers": "2"}, (0, 1)),
])  # fmt: skip
def test_servers_are_spread_over_the_hosts_and_all_others_are_workers(hosts, typed, servers):
    workers = tuple(rank for rank in range(len(hosts)) if rank not in servers)
    assert roles(shape_of(SERVER, typed, hosts)) == Roles(servers, workers)


def test_buckets_run_during_the_backward_pass_and_units_are_gathered_before_they_compute():
    ddp, fsdp = regime_named("data-parallel"), regime_named("fsdp")
    exchange = Exchange("allreduce", PAIR, 4, "")
    one = Compute(1.0)
    assert ddp.with_computing([exchange] * 2, 6.0) == (one, one, one, one, Start(0), one, one, Start(1), Wait(0), Wait(1))
    gather, scatter = (Exchange(name, PAIR, 8, "") for name in ("allgather", "reducescatter"))
    whole = fsdp.with_computing([gather, gather, scatter], 3.0)  # of a model of one unit
    assert whole == (Start(0), Wait(0), one, Start(1), Wait(1), one, one, Start(2), Wait(2))
    # two units forward, one is gathered again backward, two are scattered
    assert fsdp.with_computing([gather, gather, gather, scatter, scatter], 6.0) == (
        Start(0), Wait(0), Start(1), one, Wait(1), one,
        Start(2), Wait(2), one, one, Start(3), one, one, Start(4), Wait(3), Wait(4),
    )  # fmt: skip
    assert {name for name, regime in regimes().items() if regime.with_computing} == {"data-parallel", "fsdp"}
