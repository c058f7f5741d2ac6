"""--slowed: by how much, which cases, which ranks; every mistake is one sentence."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collbench.backends.slowing import DRAWS, Percent, Slowing, parse_slowing
from collbench.errors import UsageError
from tests.helpers import make_case

KIB, MIB = 2**10, 2**20


def only(text):
    (found,) = parse_slowing([text]).slowdowns
    return found


def of_size(size_bytes, **changes):
    return make_case(count=size_bytes // 4, **changes)


def test_without_further_words_it_means_every_case_and_rank():
    found = only("by=10%")
    assert found.by == Percent("exactly", 10)
    assert found.fits(make_case()) and found.fits(of_size(MIB, operation="broadcast", backend="mpi"))
    assert found.of(0) and found.of(10**6)


@pytest.mark.parametrize(("text", "by"), [
    ("by=2%", Percent("exactly", 2)), ("by=0.5%", Percent("exactly", 0.5)), ("by=5-15%", Percent("between", 5, 15)),
    ("by=5%-15%", Percent("between", 5, 15)), ("by=10±3%", Percent("around", 10, 3)), ("by=10%±3%", Percent("around", 10, 3)),
    ("by=10+-3%", Percent("around", 10, 3)),
])  # fmt: skip
def test_by_how_much(text, by):
    assert only(text).by == by


def test_the_cases_that_it_means():
    found = only("by=10% operations=allreduce,p2p backends=mpi sizes=8,1K-64K,1M-")
    assert found.operations == {"allreduce", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional"}
    of = {size: found.fits(of_size(size, backend="mpi")) for size in (8, 16, KIB, 64 * KIB, 128 * KIB, MIB, 1024 * MIB)}
    assert of == {8: True, 16: False, KIB: True, 64 * KIB: True, 128 * KIB: False, MIB: True, 1024 * MIB: True}
    assert not found.fits(of_size(8, backend="gloo")) and not found.fits(of_size(8, backend="mpi", operation="broadcast"))


def test_the_ranks_that_it_means():
    found = only("by=10% ranks=0,4-6")
    assert [rank for rank in range(9) if found.of(rank)] == [0, 4, 5, 6]


def test_of_several_that_fit_a_case_the_last_counts():
    found = parse_slowing(["by=2%; by=5%  sizes=1M", "by=10% sizes=1M ranks=0"])
    assert found.texts == ["by=2%", "by=5% sizes=1M", "by=10% sizes=1M ranks=0"]
    assert (found.of(of_size(KIB)), found.of(of_size(MIB))) == (found.slowdowns[0], found.slowdowns[2])
    assert Slowing().of(make_case()) is None and not Slowing() and not parse_slowing([])


def test_drawn_parts_are_those_of_the_seed_and_never_negative():
    between, around = Percent("between", 5, 15).parts([1]), Percent("around", 1, 3).parts([1])
    assert len(between) == len(around) == DRAWS
    assert np.array_equal(between, Percent("between", 5, 15).parts([1])) and not np.array_equal(
        between, Percent("between", 5, 15).parts([2])
    )
    assert (between.min() >= 0.05, between.max() <= 0.15, around.min()) == (True, True, 0)
    assert np.median(between) == pytest.approx(0.10, abs=0.005)
    assert Percent("exactly", 10).parts([1]).tolist() == [0.1]


@pytest.mark.parametrize(("text", "said"), [
    ("", "--slowed is empty: write it like 'by=10% operations=allreduce sizes=1M-16M ranks=0'"),
    ("sizes=1M", "--slowed 'sizes=1M' has no by=: write it like"),
    ("10%", "--slowed '10%': '10%' is none of by=…, operations=…, backends=…, sizes=…, ranks=…: write it like"),
    ("by=10% size=8", "'size=8' is none of by=…"),
    ("by=10% by=5%", "--slowed 'by=10% by=5%': by is given twice: separate two specs by ';'"),
    ("by=10", "--slowed 'by=10': by=10 is not a valid slowdown: use by=10%, by=5-15% or by=10±3% (up to 1000 %)"),
    ("by=0%", "by=0% is not a valid slowdown"),
    ("by=1001%", "by=1001% is not a valid slowdown"),
    ("by=1.2.3%", "by=1.2.3% is not a valid slowdown"),
    ("by=15-5%", "by=15-5% is not a valid slowdown"),
    ("by=10% operations=allreduc", "operation 'allreduc' is unknown: choose from "),
    ("by=10% backends=ncll", "backend 'ncll' is unknown: choose from mpi, gloo"),
    ("by=10% sizes=1X", "size '1X' is not a valid number of bytes"),
    ("by=10% sizes=2M-1M", "the sizes 2M-1M run downwards: write the smaller one first"),
    ("by=10% ranks=-1", "'-1' is not a valid rank: use ranks=0, ranks=0,3 or ranks=4-7"),
    ("by=10% ranks=3-1", "'3-1' is not a valid rank"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(text, said):
    with pytest.raises(UsageError) as error:
        parse_slowing([text])
    assert said in str(error.value) and "\n" not in str(error.value)


@given(
    st.lists(
        st.one_of(
            st.sampled_from([f"{key}=" for key in ("by", "operations", "backends", "sizes", "ranks")]),
            st.sampled_from(list("0159%-±+,;. =KMT")),
            st.text(max_size=3),
        )
    )
)
@settings(max_examples=60)
def test_any_text_is_read_or_refused(parts):
    try:
        found = parse_slowing(["".join(parts)])
    except UsageError as error:
        assert "--slowed" in str(error)
    else:
        assert all(0 < slowdown.by.first <= 1000 for slowdown in found.slowdowns)


def test_a_spec_that_means_nothing_here_is_refused():
    cases = [of_size(8), of_size(MIB)]
    parse_slowing(["by=10% sizes=1M ranks=3"]).check(cases, 4)
    with pytest.raises(UsageError, match="--slowed 'by=10% sizes=16'"):
        parse_slowing(["by=10% sizes=16"]).check(cases, 4)
    with pytest.raises(UsageError, match="'by=5%'"):
        parse_slowing(["by=5%; by=10%"]).check(cases, 4)
    with pytest.raises(UsageError, match="rank 4"):
        parse_slowing(["by=10% ranks=2-9"]).check(cases, 4)
