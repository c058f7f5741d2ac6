"""What DistributedDataParallel and FSDP2 exchange, by hand, and the comparison of a recorded step with it."""

import pytest

from collbench.errors import UsageError
from collbench.plugins.training.framework_steps import Exchanged, FrameworkTraining, TrafficDiffers, TrafficEqual, compared, exchanged
from collbench.plugins.training.workloads.frameworks import DDP, FSDP2, ddp_buckets, sharded_elements, tensors_of
from collbench.plugins.training.workloads.registry import frameworks, regime_named, regimes
from collbench.plugins.training.workloads.shape import shape_of
from tests.plugins.training.workloads.laid import MIB

H = 8
LAYER = 12 * H * H + 13 * H
TYPED = {"model": str(3 * LAYER + 10 * H + 3), "layers": "3", "hidden": str(H)}


def test_the_tensors_add_up_to_the_model_and_ddp_sums_in_the_order_of_its_buckets():
    model = tensors_of(shape_of(DDP, TYPED, (0, 0)))
    assert (model.rows, model.left_over, model.layers) == (10, 3, 3)
    assert model.root == ((3,), (10, H))
    assert sum(size[0] * (size[1] if size[1:] else 1) for size in model.by_gradient) == 3 * LAYER + 10 * H + 3
    assert model.by_gradient[0] == (H,) and model.by_gradient[-1] == (10, H)
    step = DDP.step(shape_of(DDP, {**TYPED, "bucket": "1K"}, (0, 0, 0)))
    assert {(one.operation, one.groups, one.redop) for one in step.exchanges} == {("allreduce", ((0, 1, 2),), "sum")}
    assert sum(one.size_bytes for one in step.exchanges) == step.payload_bytes == (3 * LAYER + 10 * H + 3) * 4
    # two vectors of 8 and a matrix of 8 × 32 with its bias fill the first kibibyte
    assert step.exchanges[0].size_bytes == (8 + 8 + 8 + 8 * 32) * 4


@pytest.mark.parametrize(("sizes", "limit", "buckets"), [
    ([4, 4, 4], 100, (12,)),
    ([4, 4, 4], 8, (8, 4)),  # full at the limit
    ([4, 5, 4], 8, (9, 4)),  # whole gradients, also beyond the limit
    ([50], 8, (50,)), ([4, 4], 4, (4, 4)),
    ([MIB // 2] * 60, 25 * MIB, (MIB, 25 * MIB, 4 * MIB)),  # the default: the first bucket is 1 MiB
    ([MIB // 2] * 60, 24 * MIB, (24 * MIB, 6 * MIB)),
])  # fmt: skip
def test_ddp_fills_buckets_with_whole_gradients(sizes, limit, buckets):
    assert ddp_buckets(sizes, limit) == buckets


@pytest.mark.parametrize(("ranks", "padded"), [(1, 10 * H + 3), (2, 10 * H + 4), (3, 12 * H + 3), (4, 12 * H + 4), (20, 20 * H + 20)])
def test_fsdp2_pads_the_first_dimension_of_each_tensor(ranks, padded):
    assert sharded_elements(((3,), (10, H)), ranks) == padded


def test_fsdp2_gathers_the_root_once_and_moves_the_bytes_of_fsdp_where_nothing_is_padded():
    step = FSDP2.step(shape_of(FSDP2, TYPED, (0, 0)))
    root, layer = (10 * H + 4) * 4, LAYER * 4
    gather, scatter = ("allgather", layer), ("reducescatter", layer)
    backward = [gather, gather, scatter, gather, scatter, scatter, ("reducescatter", root)]
    assert [(one.operation, one.size_bytes) for one in step.exchanges] == [("allgather", root), gather, gather, gather, *backward]
    typed = {"model": str(3 * LAYER + 10 * H), "layers": "3", "hidden": str(H)}
    real, modelled = (regime.step(shape_of(regime, typed, (0, 0))).exchanges for regime in (FSDP2, regimes()["fsdp"]))
    assert sum(one.size_bytes * one.times for one in real) == sum(one.size_bytes * one.times for one in modelled)


@pytest.mark.parametrize("typed", [{"model": "793K"}, {"model": str(4 * (12 * 128 * 128 + 13 * 128) + 127)}])
def test_a_model_without_room_for_an_embedding_is_refused(typed):
    with pytest.raises(UsageError):
        shape_of(DDP, typed, (0, 0))


def test_frameworks_are_named_but_are_not_among_the_regimes():
    assert list(frameworks()) == ["ddp", "fsdp2"] and not frameworks().keys() & regimes().keys()
    assert regime_named("FSDP2") is FSDP2
    assert all(regime.models in regimes() for regime in frameworks().values())


def node(number, name, shapes, types):
    return {"id": number, "name": name, "inputs": {"shapes": shapes, "types": types}}


def test_the_operations_of_an_execution_trace():
    nodes = [
        node(9, "c10d::_reduce_scatter_base_", [[5], [10], [], []], ["Tensor(c10::BFloat16)", "Tensor(c10::BFloat16)", "Object", "Int"]),
        node(3, "c10d::allreduce_", [[[4, 2]], [], []], ["GenericList[Tensor(float)]", "Object", "Int"]),
        node(4, "gloo:all_reduce", [[8]], ["Tensor(float)"]),
        node(5, "c10d::_allgather_base_", [[12], [6], [], []], ["Tensor(double)", "Tensor(double)", "Object", "Bool"]),
        node(7, "c10d::barrier", [[], []], ["Object", "Int"]),
    ]
    assert exchanged(nodes) == [
        Exchanged("allreduce", 32, "float32"), Exchanged("allgather", 96, "float64"), Exchanged("barrier", 0, ""),
        Exchanged("reducescatter", 20, "bfloat16"),
    ]  # fmt: skip


def test_the_first_difference_of_the_first_rank_is_found():
    shape = shape_of(DDP, TYPED, (0, 0))
    training = FrameworkTraining(DDP, shape, DDP.step(shape))
    right = training.expected
    other = Exchanged("allreduce", 4, "float32")
    equal = TrafficEqual("x", 1, shape.gradient_bytes, "data-parallel", shape.gradient_bytes)
    assert compared("x", right, [right, right], training) == equal
    assert compared("x", right, [right, [other]], training) == TrafficDiffers("x", 1, 0, other, right[0])
    assert compared("x", right, [right, []], training) == TrafficDiffers("x", 1, 0, None, right[0])
    assert compared("x", right, [[*right, other], []], training) == TrafficDiffers("x", 0, 1, other, None)
