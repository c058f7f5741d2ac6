"""How many bytes a rank moves in a step, by hand."""

import pytest

from collbench.errors import UsageError
from collbench.operations.traffic import Traffic
from collbench.plugins.training.workloads.step import Exchange, Step, bytes_of, moved_bytes

ALL = ((0, 1, 2, 3),)


def step(*exchanges: Exchange) -> Step:
    return Step(exchanges, payload_bytes=0)


@pytest.mark.parametrize(
    ("operation", "each"),
    [
        ("allreduce", 2 * 3 / 4 * 1200),  # each of 4 ranks sends three quarters twice
        ("allgather", 3 / 4 * 1200),
        ("reducescatter", 3 / 4 * 1200),
        ("broadcast", 1200),
        ("reduce", 1200),
        ("sendrecv", 1200),
    ],
)
def test_even_collectives_by_the_factor_of_busbw(operation: str, each: float) -> None:
    assert moved_bytes(step(Exchange(operation, ALL, 1200, "x")), 4) == (each,) * 4
    assert moved_bytes(step(Exchange(operation, ALL, 1200, "x", times=3)), 5) == (*(3 * each,) * 4, 0)


def test_of_uneven_parts_what_a_rank_really_sends_or_gets() -> None:
    # Ranks 0 and 1 each push 400 bytes to rank 2, which keeps 100 of its own.
    push = Exchange("alltoallv", ((0, 1, 2),), 900, "push", traffic=Traffic("x", matrix=((0, 0, 400), (0, 0, 400), (0, 0, 100))))
    assert bytes_of(push, 3) == (400, 400, 800)
    assert bytes_of(Exchange(**{**vars(push), "times": 2}), 3) == (800, 800, 1600)


def test_groups_at_the_same_time_and_messages_add_up_by_rank() -> None:
    pairs = Exchange("p2p_bandwidth", ((0, 1), (2, 3)), 100, "to the next stage")
    assert moved_bytes(step(pairs, Exchange("allreduce", ((1, 2),), 40, "y")), 4) == (100, 140, 140, 100)


def test_an_operation_that_is_unknown() -> None:
    with pytest.raises(UsageError, match=r"gradients: .*'allreduse': .*allgather, .*allreduce"):
        bytes_of(Exchange("allreduse", ALL, 4, "gradients"), 4)
