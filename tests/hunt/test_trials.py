"""A pair measured again: how far it is behind pairs of the same kind that are healthy."""

from __future__ import annotations

from collections.abc import Hashable
from math import log

import pytest

from collbench.analysis.hunt.judging import Measured, Scale
from collbench.analysis.hunt.protocol import GroupFigure
from collbench.analysis.hunt.significance import LATENCY, RECEIVES, SENDS


def scale(usual: dict[str, float] | None = None) -> Scale:
    """Places 0 to 3 are on one leaf, all others on another."""

    def alike(a: int, b: int) -> Hashable:
        return (a < 4) == (b < 4)

    return Scale(alike, usual or {})


def pair(a: int, b: int, speed: float, backward: float | None = None, **more: object) -> Measured:
    return (a, b), GroupFigure(speed, speed if backward is None else backward, **more)  # type: ignore[arg-type]


def test_an_even_number_of_controls_uses_the_faster_middle_one() -> None:
    found = scale().trial(0, pair(0, 1, 1e9), [pair(2, 3, 2e9), pair(4, 5, 4e9)], True, {})
    assert found.typical == pytest.approx({SENDS: 4e9, RECEIVES: 4e9}) and found.depths[SENDS] == pytest.approx(log(4))
    assert found.control_depths[SENDS] == pytest.approx((log(2), 0.0))


def test_controls_of_the_same_kind_of_path_are_the_measure_where_there_are_some() -> None:
    own, across = pair(2, 3, 2e9), pair(2, 7, 8e9)
    found = scale().trial(0, pair(0, 1, 1e9), [own, across], True, {})
    assert (found.typical[SENDS], found.controls, found.alike) == (pytest.approx(2e9), 1, True)
    other = scale().trial(0, pair(0, 1, 1e9), [across], True, {})
    assert (other.typical[SENDS], other.controls, other.alike) == (pytest.approx(8e9), 1, False)
    none = scale({SENDS: 3e9}).trial(0, pair(0, 1, 1e9), [], True, {})
    assert (none.typical, none.controls, none.alike) == ({SENDS: 3e9}, 0, False)


@pytest.mark.parametrize(("place", "partner", "sends", "receives"), [(0, 1, 1e9, 2e9), (1, 0, 2e9, 1e9)])
def test_sent_and_received_rates_are_those_of_the_place(place: int, partner: int, sends: float, receives: float) -> None:
    found = scale().trial(place, pair(0, 1, 1e9, 2e9), [pair(2, 3, 4e9, 8e9)], True, {})
    assert (found.place, found.partner) == (place, partner)
    assert found.values == {SENDS: sends, RECEIVES: receives}
    # Each direction is compared with what the controls did at the same time: all of them send first one way, then the other.
    expected = {1e9: 4e9, 2e9: 8e9}
    assert found.typical == pytest.approx({SENDS: expected[sends], RECEIVES: expected[receives]})


def test_waiting_for_a_cpu_counts_only_above_that_of_the_controls() -> None:
    controls = [pair(2, 3, 2e9, cpu_wait=0.3), pair(3, 2, 2e9, cpu_wait=0.2)]
    waits = [scale().trial(0, pair(0, 1, 1e9, cpu_wait=wait), controls, True, {}).cpu_wait for wait in (0.6, 0.25, 0.1)]
    assert waits == pytest.approx([0.35, 0.0, 0.0])
    assert scale({SENDS: 1e9}).trial(0, pair(0, 1, 1e9, cpu_wait=0.4), [], True, {}).cpu_wait == 0.4


def test_a_pair_without_a_figure_has_the_reason() -> None:
    found = scale().trial(1, ((0, 1), GroupFigure(None, na="no route")), [pair(2, 3, 2e9)], False, {})
    assert (found.partner, found.na, found.depths, found.healthy) == (0, "no route", {}, False)


def test_the_noise_is_the_largest_that_is_known_and_larger_with_few_controls() -> None:
    controls = [pair(2, 3, 2e9, latency_s=1e-5)]
    found = scale().trial(0, pair(0, 1, 1e9, latency_s=2e-5), controls, True, {SENDS: 0.02})
    assert found.noise[SENDS] == pytest.approx(0.02 * 2.8**0.5) and found.noise[LATENCY] == 0.0
    assert found.depths[LATENCY] == pytest.approx(log(2))
    learned = scale()
    learned.learn([pair(0, 1, 2e9, low=1.96e9, high=2.04e9)])
    assert learned.trial(0, pair(0, 1, 1e9), controls * 4, True, {SENDS: 0.001}).noise[SENDS] == pytest.approx(
        log(2.04 / 1.96) / (2 * 1.96) * (1 + 1.8 / 4) ** 0.5
    )
