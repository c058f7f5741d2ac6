"""Ceilings that are given, and those that are not known."""

from __future__ import annotations

from collbench.machine.peak.ceiling import ceiling_from_rate, no_ceiling

GIVEN_GB_PER_S = 12.5


def test_a_ceiling_is_given_in_gigabytes_per_second() -> None:
    assert ceiling_from_rate(GIVEN_GB_PER_S).bytes_per_s == 12.5e9
    assert no_ceiling("no link").bytes_per_s is None and no_ceiling("no link").limited_by == "no link"
