"""Ranks by host: in ascending order, host after host, in blocks of neighbours."""

import pytest

from collbench.workloads.shape import blocks, by_host, crossing, everybody, host_after_host, printable, ranks_per_host
from collbench.workloads.step import Shape


def on(*hosts):
    return Shape("made up", 1000, "float32", 4, 4096, hosts)


def test_ranks_that_take_turns_on_hosts_are_put_together():
    assert by_host(on(7, 2, 7, 2, 2)) == ((0, 2), (1, 3, 4))
    assert host_after_host(on(7, 2, 7, 2, 2)) == (0, 2, 1, 3, 4)
    assert everybody(on(7, 2, 7)) == ((0, 1, 2),)


@pytest.mark.parametrize(("hosts", "each"), [((0, 0, 1, 1), 2), ((0, 1, 2), 1), ((0, 0, 1), None), ((), None)])
def test_ranks_per_host_where_all_have_as_many(hosts, each):
    assert ranks_per_host(on(*hosts)) == each


def test_blocks_and_whether_they_cross_hosts():
    shape = on(0, 1, 0, 1)
    assert blocks(host_after_host(shape), 2) == ((0, 2), (1, 3))
    assert not crossing(blocks(host_after_host(shape), 2), shape)
    assert crossing(blocks(range(4), 2), shape)


def test_text_of_the_user_is_short_and_printable():
    assert printable("a\x1b" + 50 * "b") == "a?" + 38 * "b"
