"""A baseline and candidates for the tests of the decision: every size takes a microsecond and a nanosecond per byte."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from collbench.analysis.launches import case_of
from collbench.gating.allocation import Allocation, CaseTimes
from collbench.gating.baseline import Baseline
from collbench.gating.conditions import ExpectedChange, Floor
from collbench.gating.judge import judge
from collbench.gating.verdict import Verdict
from collbench.results.row import CaseKey
from tests.results.rows import make_row

TODAY = date(2026, 11, 21)
SIZES = (8, 1024, 64 << 20, 128 << 20, 256 << 20)
FACTS = {"software": {"nccl": "2.29"}, "topology": {"nic": "400 Gb/s"}, "hosts": {"names": "node1"}}


def case(size: int) -> CaseKey:
    return case_of(make_row(size))


def allocation(name: str, factors: Mapping[int, float] | None = None, launches: int = 5, **changes: Any) -> Allocation:
    """Every size takes a microsecond and a nanosecond per byte, times its factor."""
    times = {size: (1e-6 + size * 1e-9) * (factors or {}).get(size, 1.0) for size in SIZES}
    cases = {case(size): CaseTimes((time,) * launches) for size, time in times.items()}
    whole = Allocation(name, "2026-11-12" if name.startswith("good") else "2026-11-20", launches, 0, (6e-8,) * launches, FACTS, cases)
    return replace(whole, **changes)


BASE = Baseline(Path("base"), [allocation(f"good-{number}", launches=3) for number in range(6)])


def judged(
    *candidate: Allocation, baseline: Baseline = BASE, expected: tuple[ExpectedChange, ...] = (), asked: tuple[Floor, ...] = ()
) -> Verdict:
    return judge(baseline, candidate, expected, TODAY, asked)


def slow(name: str, factor: float = 1.1, size: int = 64 << 20, launches: int = 5) -> Allocation:
    return allocation(name, {size: factor}, launches)


def with_case(whole: Allocation, size: int, *medians_s: float | None, wrong: int = 0, na: str | None = None) -> Allocation:
    return replace(whole, cases={**whole.cases, case(size): CaseTimes(medians_s, wrong, na)})


def without_case(whole: Allocation, size: int) -> Allocation:
    return replace(whole, cases={name: measured for name, measured in whole.cases.items() if name != case(size)})


def base(*allocations: Allocation) -> Baseline:
    return Baseline(Path("base"), allocations)
