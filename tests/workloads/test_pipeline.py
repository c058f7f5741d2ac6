"""Pipeline: neighbouring stages exchange an activation and a gradient per microbatch, every other boundary at the same time."""

import pytest

from collbench.errors import UsageError
from tests.workloads.laid import described, laid_out

ACTIVATION = 1024 * 512 * 4  # of bert-large in float32


def test_a_stage_per_rank():
    step = laid_out("pipeline", {}, (0, 1, 2, 3))
    assert [described(one) for one in step.exchanges] == [
        ("sendrecv", ((0, 1), (2, 3)), ACTIVATION, 8),
        ("sendrecv", ((1, 2),), ACTIVATION, 8),
    ]
    assert step.payload_bytes == 2 * 8 * ACTIVATION  # of a stage between two others: on to one, back to the other
    assert [one.what for one in step.exchanges] == [
        "activations forward, gradients back: stages 1-2, 3-4",
        "activations forward, gradients back: stages 2-3",
    ]


def test_two_stages_have_one_boundary():
    step = laid_out("pipeline", {"microbatches": "4", "microbatch": "2", "dtype": "float16"}, (0, 1))
    assert [described(one) for one in step.exchanges] == [("sendrecv", ((0, 1),), 1024 * 512 * 2 * 2, 4)]
    assert step.payload_bytes == 4 * 1024 * 512 * 2 * 2


def test_more_ranks_than_stages_are_pipelines_side_by_side_host_after_host():
    step = laid_out("pipeline", {"stages": "2"}, (0, 1, 0, 1))
    assert step.exchanges[0].groups == ((0, 1), (2, 3))  # ranks 0 and 2 are the first stage, on host 0
    assert step.note.endswith("2 pipelines run in parallel; their gradients are not summed here (see data-parallel)")


@pytest.mark.parametrize(
    ("typed", "ranks", "why"),
    [
        ({"stages": "3"}, 4, "--stages 3 does not divide 4 ranks into a pipeline: choose 2 or 4"),
        ({"stages": "1"}, 2, "--stages 1 does not divide 2 ranks into a pipeline: choose 2"),
        ({"layers": "3"}, 4, "4 stages have too few layers, 3 in all: choose --stages 2, or a deeper model"),
        ({}, 48, "48 stages have too few layers, 24 in all: choose --stages 2 or 3 or 4 or 6 or 8 or 12 or 16 or 24, or a deeper model"),
        ({}, 29, "29 stages have too few layers, 24 in all: give --layers 29 or more, or a deeper model"),
        ({"layers": "1"}, 2, "2 stages have too few layers, 1 in all: give --layers 2 or more, or a deeper model"),
        ({}, 1, "pipeline over 1 rank: it needs 2 or more"),
        ({"model": "resnet50"}, 2, "pipeline needs layers, hidden and sequence, which model 'resnet50' does not define: choose bert-large"),
        ({"model": "7B", "layers": "32"}, 2, "pipeline needs hidden and sequence, which model '7B' does not define"),
    ],
)
def test_what_makes_no_pipeline_is_refused_with_a_remedy(typed, ranks, why):
    with pytest.raises(UsageError) as caught:
        laid_out("pipeline", typed, range(ranks))
    assert str(caught.value).startswith(why)


def test_a_plain_number_of_parameters_with_its_sizes_makes_one():
    step = laid_out("pipeline", {"model": "7B", "layers": "32", "hidden": "4096", "sequence": "2048", "dtype": "bfloat16"}, (0, 1))
    assert step.exchanges[0].size_bytes == 4096 * 2048 * 2
