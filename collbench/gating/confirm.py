"""The suite that measures only the suspects again, for two fresh allocations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from collbench.gating.baseline import group_of_case
from collbench.gating.verdict import SUSPECTED, Verdict
from collbench.results.row import CaseKey

HEADER = "# Suspects of `collbench gate`: to be measured in two fresh allocations, five launches each; then judge all."
NO_KEY = "a suite cannot name their traffic"
# The suite key for each column that names a case. Columns that follow from others (ranks, nodes) have no key.
_KEYS = {
    "operation": "operations", "backend": "backends", "dtype": "dtypes", "redop": "redops", "root": "roots", "device": "devices",
    "mode": "modes", "buffers": "buffers", "in_place": "in_place", "window": "window", "streams": "streams", "algorithm": "algorithms",
    "protocol": "protocols", "registration": "registrations", "call": "calls",
}  # fmt: skip
_EVEN = "even"
_SKEW = "skew "


def suspects(verdict: Verdict, cases: Sequence[CaseKey]) -> list[CaseKey]:
    """Return the cases to measure again: suspected cases, all cases of a suspected group, or all cases if the whole is suspected."""
    waiting = [suspicion for suspicion in verdict.suspicions if suspicion.state == SUSPECTED]
    if any(suspicion.kind == "whole" for suspicion in waiting):
        return list(cases)
    groups = {suspicion.name for suspicion in waiting if suspicion.kind == "group"}
    single = {CaseKey(**suspicion.case) for suspicion in waiting if suspicion.kind == "cell"}
    single |= {CaseKey(**floor.case) for floor in verdict.floors if floor.state == SUSPECTED}
    suspected = [case for case in cases if case in single or str(group_of_case(case)) in groups]
    return list(dict.fromkeys([*suspected, *sorted(single - set(suspected), key=str)]))


def can_be_named(case: CaseKey) -> bool:
    """Return whether suite keys can describe the case; a matrix of bytes from a file has none."""
    return case.traffic is None or case.traffic == _EVEN or _skew(case.traffic) is not None


def confirm_suite(cases: Iterable[CaseKey]) -> str:
    """Return a suite of these cases as TOML, with a sweep where only the size differs. A comment lists the cases it cannot name."""
    sweeps: dict[CaseKey, list[CaseKey]] = {}
    left_out = []
    for case in cases:
        if can_be_named(case):
            sweeps.setdefault(case._replace(size_bytes=0), []).append(case)
        else:
            left_out.append(case)
    lines = [HEADER, "schema = 1", *(f"# left out, since {NO_KEY}: {json.dumps(case)}" for case in left_out)]
    for first, members in sweeps.items():
        lines += ["", "[[sweeps]]"]
        lines += [f"{key} = {json.dumps(getattr(first, name))}" for name, key in _KEYS.items() if getattr(first, name) is not None]
        skew = _skew(first.traffic)
        if skew is not None:
            lines.append(f"skew = {skew}")
        if first.group != "all" and not first.group[:1].isdigit():
            lines.append(f"split = {json.dumps(first.group)}")
        if first.operation.startswith("multipair_"):
            lines.append(f"pairs = {first.group.partition(' ')[0]}")
        sizes = sorted(case.size_bytes for case in members if case.size_bytes)
        if sizes:
            lines.append(f"sizes = {json.dumps(sizes)}")
    return "\n".join([*lines, ""])


def _skew(traffic: Any) -> float | None:
    """Return 4 of "skew 4"."""
    try:
        return float(traffic.removeprefix(_SKEW)) if isinstance(traffic, str) and traffic.startswith(_SKEW) else None
    except ValueError:
        return None
