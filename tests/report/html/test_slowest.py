"""How often each rank ended last: a bar each, an even share as a line, and the role above the ranks that are reported."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from collbench.report.html.slowest import section
from tests.report.html.stored import material, run_of
from tests.results.rows import make_row


def case(size: int, shares: list[int], medians: list[float], **changes: Any) -> tuple[Any, dict[str, Any]]:
    """A case in which each rank was the slowest so many times, in turn, and each has this median in µs."""
    order = [rank for rank, times in enumerate(shares) for _ in range(times)]
    slowest = np.random.default_rng(size).permutation(order).astype(np.int32)
    row = make_row(size, ranks=len(shares), n=len(order), n_eff=float(len(order)), **changes)
    return row, {"slowest_rank": slowest, "rank_p50_s": np.array(medians) * 1e-6}


def test_a_rank_that_ends_last_has_its_role_above_its_bar() -> None:
    found = section(material(run_of([case(1 << power, [5, 5, 85, 5], [100, 101, 120, 99]) for power in range(3, 9)])))
    assert [text.startswith("rank 2 (node1) finishes last in 85 % ") for text in found.texts] == [True]
    (chart,) = found.charts
    assert chart.caption.startswith("rank 2 (node1) finishes last ")
    assert chart.table.rows[2] == ["2", "node1", "85 %", "25 %", "+19.4 %", "finishes last"]
    assert chart.table.marks == {2: "doubtful"}
    assert chart.spots[2].text == "rank 2 (node1): last in 85 % of the samples, its median +19.4 %, finishes last"
    assert ">finishes last<" in chart.drawing
    assert ">equal share 25 %<" in chart.drawing
    assert re.search(r'data-mark="rank \d"><path fill="var\(--limit\)"', chart.drawing) and "--bad" not in chart.drawing


def test_only_a_rank_that_is_slow_itself_is_red() -> None:
    cases = [case(1 << power, [5, 5, 85, 5], [100, 101, 120, 99], operation="alltoall") for power in range(3, 9)]
    found = section(material(run_of(cases)))
    assert (
        re.search(r'data-mark="rank \d"><path fill="var\(--bad\)"', found.charts[0].drawing)
        and found.charts[0].table.rows[2][-1] == "delays"
    )


def test_of_two_or_like_ranks_there_is_no_bar_or_no_sentence() -> None:
    found = section(material(run_of([case(1 << power, [95, 5], [130, 100]) for power in range(3, 9)])))
    assert found.charts == [] and "either rank, or the link" in found.texts[0]
    rooted = case(8, [50, 50], [100, 100], root=0)
    assert section(material(run_of([rooted]))) is None
    assert section(material(run_of([]))) is None


def test_like_ranks_are_not_named_and_a_rank_that_never_was_it_has_its_place() -> None:
    found = section(material(run_of([case(8, [50, 50, 0], [100, 100, 100])])))
    assert found.texts == []
    (chart,) = found.charts
    assert chart.caption.startswith("No rank finishes last ") and "rank 0 (node0), in 50 % " in chart.caption
    assert [row[:3] for row in chart.table.rows] == [["0", "node0", "50 %"], ["1", "node0", "50 %"], ["2", "node1", "0.0 %"]]


def test_of_many_ranks_the_most_frequent_have_bars() -> None:
    shares = [1] * 200
    shares[190] = 40
    found = section(material(run_of([case(8, shares, [100.0] * 200)])))
    (chart,) = found.charts
    assert chart.caption.endswith(" The chart shows the 64 most frequent of 200 ranks.")
    assert len(chart.table.rows) == 64
    assert chart.table.rows[-1][:3] == ["190", "–", "17 %"]
