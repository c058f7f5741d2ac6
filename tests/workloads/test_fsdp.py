"""FSDP: each unit is gathered forward and backward and its gradients scattered: three times the model."""

import pytest

from collbench.errors import UsageError
from collbench.workloads.data_parallel import units
from collbench.workloads.registry import regime_named
from collbench.workloads.shape import shape_of
from tests.workloads.laid import described, laid_out

LAYER = 4 * (1024 * 1024 + 1024) + 1024 * 4096 + 4096 + 4096 * 1024 + 1024 + 2 * 2 * 1024  # of bert-large
REST = 340 * 10**6 - 24 * LAYER


def test_bert_large_on_four_ranks_layer_after_layer():
    step = laid_out("fsdp", {}, (0, 0, 1, 1))
    everybody = ((0, 1, 2, 3),)
    assert LAYER % 4 == REST % 4 == 0
    assert [described(one) for one in step.exchanges] == [
        ("allgather", everybody, REST * 4, 1),
        ("allgather", everybody, LAYER * 4, 24),
        ("allgather", everybody, LAYER * 4, 24),
        ("reducescatter", everybody, LAYER * 4, 24),
        ("allgather", everybody, REST * 4, 1),
        ("reducescatter", everybody, REST * 4, 1),
    ]
    assert step.payload_bytes == 3 * 340 * 10**6 * 4
    assert step.note == ""


def test_what_does_not_divide_is_filled_up_which_is_reported():
    step = laid_out("fsdp", {"model": "10", "layers": "2"}, (0, 1, 2))
    assert {described(one)[2] for one in step.exchanges} == {(5 + 1) * 4}
    assert step.note == "units are padded by 1 elements, so that all ranks have parts of the same size"


def test_a_model_without_layers_is_one_unit_which_is_reported():
    step = laid_out("fsdp", {"model": "resnet50"}, (0, 1))
    assert [described(one) for one in step.exchanges] == [
        (operation, ((0, 1),), 25_557_032 * 4, 1) for operation in ("allgather", "allgather", "reducescatter")
    ]
    assert step.note == "one unit: use --layers to set the number of units"


def test_layers_of_unknown_width_are_equal_parts_and_what_is_left():
    shape = shape_of(regime_named("fsdp"), {"model": "103", "layers": "10"}, (0, 1))
    assert [(unit.parameters, unit.times) for unit in units(shape)] == [(3, 1), (10, 10)]


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        (
            {"model": "100M", "layers": "24", "hidden": "1024"},
            "24 layers of hidden size 1024 have 302,309,376 parameters, more than the 100,000,000 of model '100M': give fewer --layers",
        ),
        ({"model": "3", "layers": "4"}, "4 layers have 4 parameters, more than the 3 of model '3'"),
    ],
)  # fmt: skip
def test_layers_larger_than_the_model_are_refused(typed, why):
    with pytest.raises(UsageError) as caught:
        laid_out("fsdp", typed, (0, 1))
    assert str(caught.value).startswith(why)


def test_one_rank_has_nothing_to_gather():
    with pytest.raises(UsageError, match="fsdp over 1 rank"):
        laid_out("fsdp", {}, (0,))
