"""One ceiling per curve, chosen by its best value, so that two sizes of a curve can be compared."""

from typing import Any

import pytest

from collbench.peak.ceiling import Ceiling
from collbench.results.curves import curve_of, models, settled
from collbench.results.record import Row
from tests.results.rows import make_row, not_measured

RING = Ceiling("topology", 50e9, "NIC 4×100 Gb/s", "ring", "counted")
BOUND = Ceiling("topology", 64.6e9, "NIC 4×100 Gb/s", "bound", "counted")


def rated(size_bytes: int, gigabytes_per_s: float, **fields: Any) -> Row:
    """A row at this busbw, set against the ring reference."""
    own = {"busbw_bytes_per_s": gigabytes_per_s * 1e9, "percent_of_ceiling": 2 * gigabytes_per_s, "ceiling": RING, "hard_bound": BOUND}
    return make_row(size_bytes, **{**own, **fields})


def percents(rows: list[Row]) -> list[float | None]:
    return [None if row.percent_of_ceiling is None else round(row.percent_of_ceiling) for row in rows]


def test_a_curve_below_its_ring_reference_stays_set_against_it() -> None:
    rows = [rated(1 << 20, 21), rated(1 << 26, 49)]
    assert settled(rows) == rows
    assert list(models(rows).values()) == ["ring"]


def test_one_size_above_the_ring_reference_sets_every_size_against_the_hard_bound() -> None:
    rows = settled([rated(1 << 20, 49), rated(1 << 26, 60)])
    assert percents(rows) == [76, 93]
    assert [row.ceiling for row in rows] == [BOUND, BOUND]


def test_a_burst_of_two_percent_changes_nothing() -> None:
    assert percents(settled([rated(1 << 20, 50.9)])) == [102]
    assert percents(settled([rated(1 << 20, 51.1)])) == [79]


def test_above_the_hard_bound_the_inputs_are_doubtful() -> None:
    rows = [rated(1 << 20, 49), rated(1 << 26, 70)]
    assert list(models(rows).values()) == ["doubtful"]
    assert percents(settled(rows)) == [76, 108]


def test_each_curve_has_its_own() -> None:
    rows = [rated(1 << 20, 60, backend="mpi"), rated(1 << 20, 40, backend="gloo")]
    assert percents(settled(rows)) == [93, 80]
    assert models(rows) == {curve_of(rows[0]): "bound", curve_of(rows[1]): "ring"}


@pytest.mark.parametrize("fields", [{"percent_of_ceiling": None}, {"hard_bound": None}, {"busbw_bytes_per_s": None}, {"ceiling": None}])
def test_a_row_without_two_ceilings_or_a_percentage_is_left_alone(fields: dict[str, None]) -> None:
    row = rated(1 << 26, 60, **fields)
    assert settled([row]) == [row] and models([row]) == {}


def test_a_row_that_was_not_measured_is_left_alone() -> None:
    assert settled([not_measured("no bus")]) == [not_measured("no bus")]
