"""Hierarchical: inside each host, across hosts each rank its part, inside again; only where that makes two levels."""

import pytest

from collbench.errors import UsageError
from tests.workloads.laid import MIB, described, laid_out


def test_two_hosts_of_two_ranks():
    step = laid_out("hierarchical", {"model": str(5 * MIB), "bucket": "8M"}, (0, 0, 1, 1))
    inside, across = ((0, 1), (2, 3)), ((0, 2), (1, 3))
    assert [described(one) for one in step.exchanges] == [
        ("reducescatter", inside, 8 * MIB, 2),
        ("allreduce", across, 8 * MIB // 2, 2),
        ("allgather", inside, 8 * MIB, 2),
        ("reducescatter", inside, (5 * 4 - 2 * 8) * MIB, 1),
        ("allreduce", across, (5 * 4 - 2 * 8) * MIB // 2, 1),
        ("allgather", inside, (5 * 4 - 2 * 8) * MIB, 1),
    ]
    assert [one.redop for one in step.exchanges] == ["sum", "sum", None] * 2
    assert step.note == "2 all-reduces of 2 hosts at the same time share the wire"


def test_ranks_that_take_turns_on_the_hosts():
    step = laid_out("hierarchical", {}, (0, 1, 2, 0, 1, 2))
    assert step.exchanges[0].groups == ((0, 3), (1, 4), (2, 5))
    assert step.exchanges[1].groups == ((0, 1, 2), (3, 4, 5))


def test_an_odd_number_of_gradients_is_filled_up_which_is_reported():
    step = laid_out("hierarchical", {"model": "7"}, (0, 0, 0, 1, 1, 1))
    assert [one.size_bytes for one in step.exchanges] == [(7 + 2) * 4, 3 * 4, (7 + 2) * 4]
    assert step.note.rpartition("; ")[2].startswith("the last bucket is padded by 2 of 3 ")
    assert step.payload_bytes == 7 * 4


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ((0, 1, 2), "hierarchical over 3 ranks: it needs 4 or more"),
        ((0, 0, 0, 0), "hierarchical over one host has nothing to sum across hosts: start ranks on several hosts, or take data-parallel"),
        ((0, 1, 2, 3), "hierarchical over one rank per host has nothing to sum inside of one: start 2 or more per host"),
        ((0, 0, 0, 1), "hierarchical needs equally many ranks on every host, and these have 1 to 3: start equally many"),
    ],
)
def test_what_has_no_two_levels_is_refused_with_a_remedy(hosts, why):
    with pytest.raises(UsageError) as caught:
        laid_out("hierarchical", {}, hosts)
    assert str(caught.value).startswith(why)


def test_a_bucket_needs_room_for_a_part_of_every_rank():
    with pytest.raises(UsageError, match=r"--bucket 4 .*2 elements of float32: .*8 bytes"):
        laid_out("hierarchical", {"bucket": "4"}, (0, 0, 1, 1))
