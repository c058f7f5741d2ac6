"""For any shape: groups are disjoint and of one size, sizes are whole, nothing is lost; or one sentence with a remedy."""

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.dtypes import dtype_named
from collbench.operations.registry import operations
from collbench.operations.traffic import elements
from collbench.plugins.training.workloads.data_parallel import units
from collbench.plugins.training.workloads.registry import regime_named, regimes
from collbench.plugins.training.workloads.shape import shape_of
from collbench.plugins.training.workloads.step import disjoint

MODELS = st.sampled_from(["resnet50", "bert-large", "gpt2-xl"]) | st.integers(1, 10**7).map(str)
COUNTS = st.integers(1, 9).map(str)
OWN = {
    **dict.fromkeys(("hidden", "sequence", "microbatch", "microbatches"), COUNTS),
    "bucket": st.integers(8, 2**27).map(str), "layers": st.integers(1, 30).map(str), "experts": st.sampled_from([8, 12, 16, 24]).map(str),
    "top_k": st.integers(1, 4).map(str), "update": st.sampled_from(["synchronous", "asynchronous", "sharded"]),
    "servers": st.integers(1, 4).map(str), "stages": st.integers(1, 4).map(str), "tensor": st.integers(1, 4).map(str),
    "imbalance": st.sampled_from(["1", "1.5", "2", "3/2"]), "seed": st.integers(0, 5).map(str),
}  # fmt: skip
HOSTS = st.lists(st.integers(0, 3), min_size=1, max_size=8) | st.builds(
    lambda hosts, each: [host for host in range(hosts) for _ in range(each)], st.integers(1, 4), st.integers(1, 4)
)
LAID_OUT = [HealthCheck.filter_too_much]  # many shapes are refused, and that is right
EVERY = pytest.mark.parametrize("name", regimes())


@st.composite
def asked(draw, name):
    """(shape, step) of a regime that could be laid out."""
    regime = regime_named(name)
    typed = {"model": draw(MODELS), "dtype": draw(st.sampled_from(["float32", "bfloat16", "float64"]))}
    for word in (*regime.takes, *regime.options):
        if word not in OWN:  # of expert-parallel: tests/plugins/training/workloads/test_routing.py
            continue
        if draw(st.booleans()) or word in ("hidden", "sequence"):
            typed[word] = draw(OWN[word])
    hosts = draw(HOSTS)
    try:
        shape = shape_of(regime, typed, hosts)
        return shape, regime.step(shape)
    except UsageError as error:
        assert str(error).isprintable()
        assert ":" in str(error) or ";" in str(error), "a remedy"
        assume(False)


@EVERY
@settings(max_examples=30, deadline=None, suppress_health_check=LAID_OUT)
@given(data=st.data())
def test_groups_are_disjoint_and_alike_and_sizes_are_whole_elements_of_what_the_operation_takes(name, data):
    shape, step = data.draw(asked(name))
    assert step.exchanges and step.payload_bytes > 0
    for exchange in step.exchanges:
        assert disjoint(exchange.groups)
        assert {len(group) for group in exchange.groups} in ({n} for n in range(2, shape.ranks + 1))
        assert {rank for group in exchange.groups for rank in group} <= set(range(shape.ranks))
        operation = operations()[exchange.operation]
        unit = dtype_named(exchange.dtype).size * operation.parts(len(exchange.groups[0]))
        assert exchange.size_bytes > 0 and exchange.size_bytes % unit == 0
        assert exchange.times >= 1 and exchange.what
        assert (exchange.redop == "sum") == operation.reduces
        assert (exchange.traffic is not None) == operation.uneven
        assert exchange.dtype == shape.dtype and not operation.rooted


@settings(max_examples=40, deadline=None, suppress_health_check=LAID_OUT)
@given(asked("data-parallel"))
def test_buckets_add_up_to_the_gradients_and_only_the_last_is_smaller(made):
    shape, step = made
    assert sum(exchange.times * exchange.size_bytes for exchange in step.exchanges) == shape.gradient_bytes == step.payload_bytes
    assert len(step.exchanges) <= 2 and step.exchanges[-1].size_bytes <= step.exchanges[0].size_bytes <= max(shape.bucket_bytes, 8)


@settings(max_examples=40, deadline=None, suppress_health_check=LAID_OUT)
@given(asked("hierarchical"))
def test_hierarchical_buckets_are_padded_by_less_than_one_element_per_rank_of_a_host(made):
    shape, step = made
    local = len(step.exchanges[0].groups[0])
    for operation, share in (("reducescatter", 1), ("allreduce", local), ("allgather", 1)):
        total = share * sum(one.times * one.size_bytes for one in step.exchanges if one.operation == operation)
        assert 0 <= total - shape.gradient_bytes < local * shape.element_bytes
        assert ("padded by" in step.note) == (total > shape.gradient_bytes)


@settings(max_examples=40, deadline=None, suppress_health_check=LAID_OUT)
@given(asked("parameter-server") | asked("expert-parallel"))
def test_uneven_traffic_is_moved_byte_by_byte_at_its_size_and_what_went_there_comes_back(made):
    _, step = made
    total = 0.0
    for exchange in step.exchanges:
        if exchange.traffic is None:
            continue
        n, width = len(exchange.groups[0]), dtype_named(exchange.dtype).size
        matrix = np.array(exchange.traffic.matrix)
        assert (elements(exchange.traffic, n, exchange.size_bytes // width) * width == matrix).all()
        there = exchange.what.startswith(("gradients to", "tokens to", "gradients of results"))
        total = total + exchange.times * (matrix if there else -matrix.T)
    assert np.all(total == 0)


@settings(max_examples=40, deadline=None, suppress_health_check=LAID_OUT)
@given(asked("expert-parallel"))
def test_no_copy_of_a_token_is_lost(made):
    shape, step = made
    out = np.array(step.exchanges[0].traffic.matrix)
    token = shape.hidden * shape.element_bytes
    assert (out.sum(axis=1) == shape.sequence * shape.microbatch * shape.top_k * token).all()
    assert (out % token == 0).all()


@settings(max_examples=40, deadline=None, suppress_health_check=LAID_OUT)
@given(asked("fsdp"))
def test_units_are_padded_by_less_than_one_element_per_rank(made):
    shape, step = made
    number = sum(one.times for one in step.exchanges if one.operation == "reducescatter")
    outside = number - shape.layers if shape.layers else 0  # gathered once
    assert sum(one.times for one in step.exchanges) == 3 * number - outside
    gathered_once = shape.gradient_bytes - shape.layers * units(shape)[-1].parameters * shape.element_bytes if outside else 0
    assert step.payload_bytes == 3 * shape.gradient_bytes - gathered_once
    total = sum(one.times * one.size_bytes for one in step.exchanges)
    assert 0 <= total - step.payload_bytes <= 3 * number * (shape.ranks - 1) * shape.element_bytes
