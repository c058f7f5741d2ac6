"""Tensor-parallel: two all-reduces per layer forward and two backward, in groups inside a host by default."""

import pytest

from collbench.errors import UsageError
from tests.workloads.laid import described, laid_out

ACTIVATION = 1024 * 512 * 4  # of bert-large in float32


def test_groups_are_those_of_a_host():
    step = laid_out("tensor-parallel", {}, (0, 0, 1, 1))
    assert [described(one) for one in step.exchanges] == [("allreduce", ((0, 1), (2, 3)), ACTIVATION, 2 * 24)] * 2
    assert step.payload_bytes == 4 * 24 * ACTIVATION
    assert step.note == "2 groups at the same time; embedding and loss are left out"


def test_microbatches_each_take_as_many():
    forward, _ = laid_out("tensor-parallel", {"microbatches": "3", "microbatch": "5", "layers": "2"}, (0, 0)).exchanges
    assert (forward.times, forward.size_bytes) == (2 * 2 * 3, 5 * ACTIVATION)


def test_larger_groups_cross_hosts_which_is_reported():
    step = laid_out("tensor-parallel", {"tensor": "4"}, (0, 1, 0, 1))
    assert step.exchanges[0].groups == ((0, 2, 1, 3),)
    assert step.note.startswith("one group of all ranks")


def test_smaller_groups_stay_inside():
    assert laid_out("tensor-parallel", {"tensor": "2"}, (0, 0, 0, 0)).exchanges[0].groups == ((0, 1), (2, 3))


@pytest.mark.parametrize(
    ("typed", "hosts", "why"),
    [
        ({}, (0, 1, 2), "but every host has only one: start more per host, or use --tensor 3"),
        ({}, (0, 0, 1), "but the hosts have different numbers of ranks: use --tensor 3"),
        ({"tensor": "3"}, (0, 0, 1, 1), "--tensor 3 does not divide 4 ranks into groups of 2 and more: choose 2 or 4"),
        ({"tensor": "1"}, (0, 0), "--tensor 1 does not divide 2 ranks into groups of 2 and more: choose 2"),
        ({"model": "resnet50"}, (0, 0), "tensor-parallel needs layers, hidden and sequence"),
        ({}, (0,), "tensor-parallel over 1 rank: it needs 2 or more"),
    ],
)
def test_what_makes_no_groups_is_refused_with_a_remedy(typed, hosts, why):
    with pytest.raises(UsageError) as caught:
        laid_out("tensor-parallel", typed, hosts)
    assert why in str(caught.value)
