"""GPUDirect RDMA on and off in interleaved launches: what the ratio shows of the path, and when it is inconclusive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.gdr_check import Effect, effects, sentences, verdict
from collbench.errors import UsageError
from collbench.results.row import Row
from collbench.stats.launches import Ratio
from tests.results.rows import make_row, make_times, not_measured, store

MIB = 1 << 20
TIMES = [1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3]


def side(factor: float, sizes: tuple[int, ...] = (MIB, 4 * MIB), times: list[float] = TIMES, **changes: Any) -> list[list[Row]]:
    """Launches of one side: every time `factor` as long."""
    return [[make_row(size, time_s=make_times(time * factor), **changes) for size in sizes] for time in times]


def lines_of(found: list[Effect], used: bool | None = None, used_without: bool | None = None) -> list[str]:
    return sentences(found, used, used_without)


def test_twice_as_fast_with_it() -> None:
    found = effects(side(1), side(2))
    assert [(each.verdict, each.speed.value) for each in found] == [("faster", pytest.approx(2))] * 2
    (sentence,) = lines_of(found)
    assert "1 MiB-4 MiB (2 sizes) are 2.00x (2.00 to 2.00)" in sentence


def test_drift_hits_both_of_a_pair_and_cancels() -> None:
    """Times that double from launch to launch: pairs still agree."""
    drifting = [1e-3, 2e-3, 4e-3, 8e-3]
    (found,) = effects(side(1, (MIB,), drifting), side(1.5, (MIB,), drifting))
    assert (found.verdict, found.over_launches) == ("faster", True)
    assert found.speed.value == pytest.approx(1.5)
    assert found.speed.low == pytest.approx(1.5) and found.speed.high == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("used", "reason"),
    [
        (None, "not in use, or does not matter"),
        (True, "in use, but does not matter"),
        (False, "not in use (NCCL's log)"),
    ],
)
def test_no_difference(used: bool | None, reason: str) -> None:
    found = effects(side(1), side(1.01))
    assert {each.verdict for each in found} == {"same"}
    assert [reason in sentence for sentence in lines_of(found, used)] == [True]


def test_sizes_that_do_not_differ_are_distinguished() -> None:
    a, b = side(1, (1024, MIB)), side(1, (1024, MIB))
    b = [[rows[0], make_row(MIB, time_s=make_times(2 * time))] for rows, time in zip(b, TIMES, strict=True)]
    faster, same = lines_of(effects(a, b))
    assert "1 MiB is 2.00x (2.00 to 2.00)" in faster and same.startswith("1 KiB: no difference")


def test_slower_with_it() -> None:
    found = effects(side(2), side(1))
    assert {each.verdict for each in found} == {"slower"}
    assert "1 MiB-4 MiB (2 sizes) are 0.50x (0.50 to 0.50)" in lines_of(found)[0]


def test_too_wide_for_a_verdict() -> None:
    wide = effects(side(1, times=[1e-3, 1e-3]), side(1, times=[1e-3, 1.4e-3]))
    assert {each.verdict for each in wide} == {"unknown"}
    assert ["too wide" in sentence for sentence in lines_of(wide)] == [True]


def test_a_side_that_did_not_heed_the_level_gives_no_verdict() -> None:
    assert ["NCCL_NET_GDR_LEVEL=LOC" in sentence for sentence in lines_of(effects(side(1), side(2)), True, True)] == [True]


def test_a_difference_without_a_connection_that_uses_it_has_another_cause() -> None:
    assert lines_of(effects(side(1), side(2)), False, False)[1].startswith("but NCCL's log shows")


def test_one_launch_a_side_has_the_interval_within_and_reports_it() -> None:
    found = effects(side(1, (MIB,), TIMES[:1]), side(2, (MIB,), TIMES[:1]))
    assert not found[0].over_launches
    assert "--launches 3" in lines_of(found)[-1]


def test_wrong_data_make_no_verdict() -> None:
    assert effects(side(1, (MIB,), wrong=3), side(2, (MIB,))) == []


def test_cases_that_a_launch_lacks_are_left_out() -> None:
    a, b = side(1), side(2)
    b[1] = [not_measured("out of memory", size_bytes=MIB), b[1][1]]
    assert [each.row.size_bytes for each in effects(a, b)] == [4 * MIB]
    assert effects(a, [[]]) == [] and ["no case" in sentence for sentence in lines_of([])] == [True]


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(1.06, 3, "faster"), (0.2, 0.9, "slower"), (0.97, 1.04, "same"), (1.02, 1.3, "unknown"), (None, None, "unknown")],
)
def test_what_an_interval_reports(low: float | None, high: float | None, verdict: str) -> None:
    assert Effect(make_row(MIB), Ratio(1.0, low, high, 4), True).verdict == verdict


def test_from_the_folders_of_launches(tmp_path: Path) -> None:
    folders: dict[str, list[Path]] = {}
    for name, factor, state in (("with", 1, "proven used"), ("without", 1.9, "capable, not used")):
        for number, rows in enumerate(side(factor, evidence={"gpudirect": {"state": state, "why": "x"}})):
            folder = tmp_path / name / f"launch-{number + 1}"
            store(folder, rows)
            folders.setdefault(name, []).append(folder)
    (sentence,) = verdict(folders["with"], folders["without"])
    assert "1 MiB-4 MiB (2 sizes) are 1.90x (1.90 to 1.90)" in sentence
    with pytest.raises(UsageError):
        verdict([tmp_path / "nothing"], folders["without"])
