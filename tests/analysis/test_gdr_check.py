"""GPUDirect RDMA on and off in interleaved launches: what the ratio shows of the path, and when it is inconclusive."""

from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.gdr_check import Effect, effects, verdict
from collbench.errors import UsageError
from collbench.results.row import Row
from collbench.stats.launches import Ratio
from tests.results.rows import make_row, make_times, not_measured, store

MIB = 1 << 20
TIMES = [1.00e-3, 1.01e-3, 0.99e-3, 1.00e-3]


def side(factor: float, sizes: tuple[int, ...] = (MIB, 4 * MIB), times: list[float] = TIMES, **changes: Any) -> list[list[Row]]:
    """Launches of one side: every time `factor` as long."""
    return [[make_row(size, time_s=make_times(time * factor), **changes) for size in sizes] for time in times]


@pytest.mark.parametrize(("with_it", "without", "verdict", "speed"), [(1, 2, "faster", 2), (2, 1, "slower", 0.5), (1, 1.01, "same", 1.01)])
def test_faster_slower_and_the_same_with_it(with_it: float, without: float, verdict: str, speed: float) -> None:
    found = effects(side(with_it), side(without))
    assert [(each.verdict, each.speed.value) for each in found] == [(verdict, pytest.approx(speed))] * 2


def test_drift_hits_both_of_a_pair_and_cancels() -> None:
    """Times that double from launch to launch: pairs still agree."""
    drifting = [1e-3, 2e-3, 4e-3, 8e-3]
    (found,) = effects(side(1, (MIB,), drifting), side(1.5, (MIB,), drifting))
    assert (found.verdict, found.over_launches) == ("faster", True)
    assert (found.speed.value, found.speed.low, found.speed.high) == pytest.approx((1.5,) * 3)


def test_wide_intervals_and_those_of_one_launch_are_reported_as_such() -> None:
    wide = effects(side(1, times=[1e-3, 1e-3]), side(1, times=[1e-3, 1.4e-3]))
    assert {each.verdict for each in wide} == {"unknown"}
    assert not effects(side(1, (MIB,), TIMES[:1]), side(2, (MIB,), TIMES[:1]))[0].over_launches


def test_cases_with_wrong_data_or_that_a_launch_lacks_are_left_out() -> None:
    a, b = side(1), side(2)
    assert effects(side(1, wrong=3), b) == []
    b[1] = [not_measured("out of memory", size_bytes=MIB), b[1][1]]
    assert [each.row.size_bytes for each in effects(a, b)] == [4 * MIB]
    assert effects(a, [[]]) == []


@pytest.mark.parametrize(("low", "high", "verdict"), [
    (1.06, 3, "faster"), (0.2, 0.9, "slower"), (0.97, 1.04, "same"), (1.02, 1.3, "unknown"), (None, None, "unknown"),
])  # fmt: skip
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
