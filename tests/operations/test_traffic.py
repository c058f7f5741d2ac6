"""Traffic: shares become whole elements, the busiest rank gets exactly the size, and a matrix that does not fit is rejected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.operations.builtin.alltoall import ALLTOALLV
from collbench.operations.data import BufferExtent, bytes_needed
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import EVEN, Traffic, elements, is_rough, skewed
from tests.helpers import make_case

COUNTS = st.integers(0, 2**41)
UNEVEN = Traffic("made up", matrix=((0.0, 60.0, 12.0), (8.0, 0.0, 0.0), (4.0, 4.0, 4.0)))


@st.composite
def traffics(draw):
    """(ranks, a traffic between them)."""
    n = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return n, skewed(draw(st.floats(1, n)))
    numbers = st.sampled_from([0, 1, 5, 1000]) | st.integers(0, 10**12)
    rows = draw(st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=n, max_size=n).filter(lambda rows: sum(map(sum, rows))))
    return n, Traffic("made up", matrix=tuple(tuple(map(float, row)) for row in rows))


@settings(max_examples=150, deadline=None)
@given(traffics(), COUNTS)
def test_the_busiest_rank_gets_the_size_no_rank_more_and_no_rank_sends_more(made, count):
    n, traffic = made
    parts, weights = elements(traffic, n, count), traffic.weights(n)
    assert max(parts.sum(axis=0).max(), parts.sum(axis=1).max()) == count
    assert parts.min() >= 0 and not parts[weights == 0].any()
    shares = weights * (count / max(weights.sum(axis=0).max(), weights.sum(axis=1).max()))
    assert np.all(np.abs(parts - shares) < 2 + 1e-9 * count)


@settings(max_examples=50, deadline=None)
@given(traffics())
def test_a_file_at_its_own_size_is_moved_byte_by_byte(made):
    n, traffic = made
    if traffic.matrix is not None:
        assert (elements(traffic, n, traffic.own_bytes()) == np.array(traffic.matrix)).all()
        assert not is_rough(traffic, n, traffic.own_bytes())


def test_even_parts_are_as_even_as_elements_allow():
    assert (elements(EVEN, 4, 40) == 10).all() and (elements(None, 4, 40) == 10).all()
    assert set(elements(EVEN, 4, 41).sum(axis=0)) == set(elements(EVEN, 4, 41).sum(axis=1)) == {41}
    assert elements(EVEN, 4, 2).sum(axis=1).tolist() == [2] * 4


@pytest.mark.parametrize(("skew", "n", "received"), [
    (1, 4, [100, 100, 100, 100]), (2, 4, [100, 33, 33, 33]), (4, 4, [100, 0, 0, 0]), (1.5, 2, [100, 33]),
])  # fmt: skip
def test_the_busiest_receiver_gets_so_many_times_the_average(skew, n, received):
    parts = elements(skewed(skew), n, 100)
    assert parts.sum(axis=0).tolist() == received
    weights = skewed(skew).weights(n)
    assert weights.sum(axis=0)[0] == pytest.approx(skew * weights.sum() / n)
    assert len(set(weights.sum(axis=1))) == 1, "all send as much"


def test_names():
    assert (skewed(1), skewed(2.5).name, EVEN.name) == (EVEN, "skew 2.5", "even")


@pytest.mark.parametrize(("traffic", "n", "sentence"), [
    (skewed(4), 2, "--skew 4 over 2 ranks: where all that is sent goes to one rank, it gets 2 times the average; "
                   "choose 1 to 2, or start more ranks"),
    (UNEVEN, 4, "traffic made up is of 3 ranks, and it is to run over 4: start 3, or write 4 rows of 4 numbers"),
])  # fmt: skip
def test_traffic_that_does_not_fit_the_ranks(traffic, n, sentence):
    for ask in (traffic.check_ranks, traffic.weights, lambda ranks: elements(traffic, ranks, 8)):
        with pytest.raises(UsageError) as refused:
            ask(n)
        assert str(refused.value) == sentence
    with pytest.raises(UsageError):
        Sweep((ALLTOALLV,), (8,), (DTYPES["int8"],), traffic=traffic).check_ranks(n)


def test_cases_are_scaled_and_report_where_rounding_shows():
    """72 bytes are what rank 0 sends: 18 floats, of which 60 and 12 bytes are whole ones, as all others are."""
    sweep = Sweep((ALLTOALLV,), (4, 72, 73, 1 << 20), (DTYPES["float32"],), traffic=UNEVEN)
    cases = list(sweep.cases("mpi", 3))
    assert [(case.size_bytes, case.flags) for case in cases] == [(4, ("size_rounded",)), (72, ()), (1 << 20, ())]
    assert {case.traffic for case in cases} == {UNEVEN} and UNEVEN.own_bytes() == 72
    assert [case.flags for case in Sweep((ALLTOALLV,), (73,), (DTYPES["float32"],), traffic=UNEVEN).cases("mpi", 3)] == [("size_rounded",)]


def test_every_part_arrives_behind_that_of_the_rank_before():
    case = make_case(count=72, dtype="int8", operation="alltoallv", redop=None, traffic=UNEVEN)
    blocks = [
        [(block.sources, block.at, block.count) for block in ALLTOALLV.expected_blocks(Place(rank, 3, 72, case))] for rank in range(3)
    ]
    assert blocks == [[([1], 0, 8), ([2], 0, 4)], [([0], 0, 60), ([2], 4, 4)], [([0], 60, 12), ([2], 8, 4)]]
    assert [ALLTOALLV.sends(Place(rank, 3, 72, case)) for rank in range(3)] == [72, 8, 12]


@settings(max_examples=50, deadline=None)
@given(traffics(), st.integers(1, 10**6))
def test_the_rank_that_needs_most_memory_is_counted(made, count):
    n, traffic = made
    case = make_case(count=count, operation="alltoallv", redop=None, traffic=traffic)
    largest = max(BufferExtent.of(ALLTOALLV, Place(rank, n, count, case)).total for rank in range(n)) * 4
    assert largest <= bytes_needed(ALLTOALLV, case, n) < largest + 8192


def test_a_rank_s_block_lies_behind_what_its_sender_sends_to_the_ranks_before():
    traffic = Traffic("by hand", matrix=((0.0, 3.0, 5.0), (2.0, 0.0, 6.0), (7.0, 1.0, 0.0)))
    parts = elements(traffic, 3, 80)
    case = make_case(count=80, redop=None, traffic=traffic)
    for rank in range(3):
        blocks = ALLTOALLV.expected_blocks(Place(rank, 3, 80, case))
        assert [(block.sources[0], block.at, block.count) for block in blocks] == [
            (sender, int(parts[sender, :rank].sum()), int(parts[sender, rank])) for sender in range(3) if sender != rank
        ]
