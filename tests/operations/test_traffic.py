"""Traffic of ranks: shares become whole elements and add up to the size; a file or a matrix that does not fit is rejected."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.errors import UsageError
from collbench.measuring.crossing import least
from collbench.operations import traffic
from collbench.operations.builtin.alltoall import ALLTOALLV
from collbench.operations.data import BufferExtent, bytes_needed
from collbench.operations.dtypes import DTYPES
from collbench.operations.operation import Place
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweep
from collbench.operations.traffic import EVEN, Traffic, elements, elements_by_rank, is_rough, read_traffic, skewed
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


def test_even_parts_are_as_even_as_elements_allow_and_have_a_name():
    assert (elements(EVEN, 4, 40) == 10).all() and (elements(None, 4, 40) == 10).all()
    assert set(elements(EVEN, 4, 41).sum(axis=0)) == set(elements(EVEN, 4, 41).sum(axis=1)) == {41}
    assert elements(EVEN, 4, 2).sum(axis=1).tolist() == [2] * 4
    assert (skewed(1), skewed(2.5).name, EVEN.name) == (EVEN, "skew 2.5", "even")


@pytest.mark.parametrize(("skew", "n", "received"), [
    (1, 4, [100, 100, 100, 100]), (2, 4, [100, 33, 33, 33]), (4, 4, [100, 0, 0, 0]), (1.5, 2, [100, 33]),
])  # fmt: skip
def test_the_busiest_receiver_gets_so_many_times_the_average(skew, n, received):
    parts = elements(skewed(skew), n, 100)
    assert parts.sum(axis=0).tolist() == received
    weights = skewed(skew).weights(n)
    assert weights.sum(axis=0)[0] == pytest.approx(skew * weights.sum() / n)
    assert len(set(weights.sum(axis=1))) == 1, "all send as much"


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


LIKE = "write one row per sending rank and one number of bytes per receiving rank, separated by commas or spaces; or one number per rank"


def read(folder, text):
    (folder / "m.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_traffic(folder / "m.csv")


@pytest.mark.parametrize("text", [
    *(f"\ufeff# x{end}0,5{end}{end}7,1{end}" for end in ("\n", "\r\n", "\r")),
    "0,5\n7,1\n",
    "0 5\n7 1", "0\t5\r\n7\t1\r\n", "# bytes, by rank\n0, 5 # of rank 0\n\n7, 1\n", "\ufeff0,5\n7,1", '"0","5"\n7,1,\n', "0.0 +5\n7e0 1.",
])  # fmt: skip
def test_commas_or_spaces_and_comments_and_lines_that_end_as_on_any_machine(text, tmp_path):
    found = read(tmp_path, text)
    assert (found.matrix, found.own_bytes()) == (((0.0, 5.0), (7.0, 1.0)), 8)
    assert found.name == f"m.csv:{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@pytest.mark.parametrize(("text", "sentence"), [
    ("", f"holds no numbers: {LIKE}"), ("# nothing\n\n", f"holds no numbers: {LIKE}"),
    ("0,0\n0,0", "has only zeros: at least one rank must send data"),
    ("1,2\n3", f", line 2: 1 numbers in one of 2 rows: {LIKE}"), ("1 2 3\n4 5 6", f", line 1: 3 numbers in one of 2 rows: {LIKE}"),
    ("1,-2\n3,4", ", line 1: '-2' is not a number of bytes: use whole numbers from 0 on"),
    ("1,2\n#\n3,x", ", line 3: 'x' is not a number of bytes: use whole numbers from 0 on"),
    ("1,\n3,4", f", line 1: 1 numbers in one of 2 rows: {LIKE}"),
    ("1,,2", ", line 1: '' is not a number of bytes: use whole numbers from 0 on"),
    ("nan", ", line 1: 'nan' is not a number of bytes: use whole numbers from 0 on"),
    ("inf", ", line 1: 'inf' is not a number of bytes: use whole numbers from 0 on"),
    ("1e999", ", line 1: '1e999' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("0.5", ", line 1: '0.5' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("1e17", ", line 1: '1e17' is not a number of bytes: use whole numbers from 0 to 2^53"),
    ("9e15 9e15\n9e15 9e15", ": the sum is 3.6e+16 bytes, which is too high: the values must be the bytes of one call"),
    (f"{'1' * 200_000},1", f", line 1: '{'1' * 40}' is not a number of bytes: use whole numbers from 0 on"),
    (b"\xff\xfe1\x002", f"is not text: {LIKE}"),
])  # fmt: skip
def test_what_is_no_matrix_of_bytes(text, sentence, tmp_path):
    with pytest.raises(UsageError) as refused:
        read(tmp_path, text)
    assert str(refused.value) == f"traffic file '{tmp_path / 'm.csv'}'{'' if sentence.startswith((',', ':')) else ' '}{sentence}"


def test_what_cannot_be_read_or_would_take_more_memory_than_any_job_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"traffic file '.*absent' .*\(No such file or directory\)"):
        read_traffic(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"\(Is a directory\)"):
        read_traffic(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe' .*\(it is a pipe"):
        read_traffic(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"line 1: .*1 MiB"):
        read(tmp_path, b"1 " * (1 << 20))
    monkeypatch.setattr(traffic, "_MOST_NUMBERS", 8)
    with pytest.raises(UsageError, match=r"line 3: .*8 numbers"):
        read(tmp_path, "1 2 3\n4 5 6\n7 8 9\n")
    monkeypatch.setattr(traffic, "_LARGEST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="more than 1 MiB"):
        read(tmp_path, b"1 " * (1 << 20))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text("0123456789.,-+e# \n\t\"'x", max_size=60).map(str.encode))
def test_any_file_is_a_square_a_list_or_one_sentence(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(raw)
    try:
        found = read_traffic(path)
    except UsageError as error:
        assert str(error).startswith(f"traffic file '{path}'") and "\n" not in str(error)
        return
    widths = {len(row) for row in found.matrix}
    assert widths == {len(found.matrix)} or len(found.matrix) == 1 or widths == {1}
    assert all(number >= 0 for row in found.matrix for number in row) and found.own_bytes()


UNEVEN_OPERATIONS = ("allgatherv", "gatherv", "scatterv", "reducescatterv")
PARTS = Traffic("made", matrix=((0.0, 5.0, 3.0),))
MATRIX = Traffic("made", matrix=((1.0, 2.0), (3.0, 4.0)))
WEIGHTS = st.lists(st.integers(0, 10**12), min_size=1, max_size=6).filter(any)


@settings(max_examples=100, deadline=None)
@given(WEIGHTS, st.integers(0, 2**41))
def test_parts_add_up_to_the_size_and_are_at_most_one_element_off(weights, count):
    parts = elements_by_rank(Traffic("made", matrix=(tuple(map(float, weights)),)), len(weights), count)
    assert sum(parts) == count and min(parts) >= 0
    assert all(abs(part * sum(weights) - weight * count) < sum(weights) for part, weight in zip(parts, weights, strict=True))
    assert all(part == 0 for part, weight in zip(parts, weights, strict=True) if not weight)


def test_rank_0_has_so_many_times_the_average_and_rounding_shows():
    parts = [elements_by_rank(skewed(skew), n, 100) for skew, n in ((1, 4), (2, 4), (4, 4), (1, 1))]
    assert parts == [(25, 25, 25, 25), (50, 16, 17, 17), (100, 0, 0, 0), (100,)]
    assert is_rough(EVEN, 3, 4, by_rank=True) and not is_rough(EVEN, 3, 9, by_rank=True) and not is_rough(PARTS, 3, 16, by_rank=True)


@pytest.mark.parametrize("text", ["0 5 3", "0\n5\n3\n", "0, 5, 3"])
def test_a_file_has_a_number_per_rank_in_a_row_or_a_column(tmp_path, text):
    (tmp_path / "bytes").write_text(text)
    traffic = read_traffic(tmp_path / "bytes")
    assert (traffic.matrix, traffic.by_rank, traffic.own_bytes()) == (PARTS.matrix, True, 8)
    assert elements_by_rank(traffic, 3, 8) == (0, 5, 3)


@pytest.mark.parametrize(
    ("traffic", "name", "n"), [(PARTS, "alltoallv", 3), (MATRIX, "allgatherv", 2), (PARTS, "gatherv", 2), (skewed(3), "scatterv", 2)]
)
def test_traffic_that_does_not_fit_the_operation_is_an_error(traffic, name, n):
    with pytest.raises(UsageError, match=r"write|start"):
        Sweep((operations()[name],), (8,), (DTYPES["int8"],), traffic=traffic).check_ranks(n)


def place(name, rank, count=80, traffic=PARTS, **more):
    operation = operations()[name]
    redop = "sum" if operation.reduces else None
    return operation, Place(rank, 3, count, make_case(count=count, operation=name, redop=redop, traffic=traffic, **more))


def test_blocks_of_uneven_parts_with_an_empty_one_and_of_an_exscan_of_which_rank_0_expects_nothing():
    blocks = {}
    for name in UNEVEN_OPERATIONS:
        for rank in range(3):
            operation, it = place(name, rank, root=2)
            blocks[name, rank] = [(list(block.sources), block.at, block.count) for block in operation.expected_blocks(it) if block.count]
    whole = [([1], 0, 50), ([2], 0, 30)]
    assert [blocks["allgatherv", rank] for rank in range(3)] == [whole] * 3
    assert [blocks["gatherv", rank] for rank in range(3)] == [[], [], whole]
    assert [blocks["scatterv", rank] for rank in range(3)] == [[], [([2], 0, 50)], [([2], 50, 30)]]
    assert [blocks["reducescatterv", rank] for rank in range(3)] == [[], [([0, 1, 2], 0, 50)], [([0, 1, 2], 50, 30)]]
    sources = []
    for rank in range(3):
        operation, it = place("exscan", rank, traffic=None)
        sources.append([list(block.sources) for block in operation.expected_blocks(it)])
    assert sources == [[], [[0]], [[0, 1]]]


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", UNEVEN_OPERATIONS)
def test_of_uneven_parts_the_rank_that_needs_most_memory_is_counted(name, in_place):
    operation, it = place(name, 0, 8000, root=1, in_place=in_place)
    largest = max(BufferExtent.of(operation, Place(rank, 3, 8000, it.case)).total for rank in range(3)) * 4
    assert largest <= bytes_needed(operation, it.case, 3) < largest + 8192


@pytest.mark.parametrize(("name", "hosts", "out", "into"), [
    ("scan", "aabb", {"a": 1}, {"b": 1}),
    ("scan", "abab", {"a": 2, "b": 1}, {"a": 1, "b": 2}),  # rank 3 needs the sum of ranks 0 and 2, and rank 1 rank 0's data
    ("exscan", "aabb", {"a": 1}, {"b": 1}), ("exscan", "abab", {"a": 2, "b": 1}, {"a": 1, "b": 2}), ("exscan", "ab", {"a": 1}, {"b": 1}),
])  # fmt: skip
def test_sums_of_a_scan_that_must_cross(name, hosts, out, into):
    found = least(operations()[name], make_case(count=1000, operation=name), (tuple(range(len(hosts))),), dict(enumerate(hosts)))
    size = 4000
    assert {host: amount / size for host, amount in found.out.items() if amount} == pytest.approx(out)
    assert {host: amount / size for host, amount in found.into.items() if amount} == pytest.approx(into)
    assert found.total / size == pytest.approx(sum(out.values()))
