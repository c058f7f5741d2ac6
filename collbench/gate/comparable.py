"""Whether a candidate can be judged by a baseline at all: fresh allocations, the same cells, the same cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from itertools import combinations

from collbench.analysis.differences import Difference
from collbench.errors import UsageError
from collbench.gate.allocation import COLUMNS, Allocation, Cell
from collbench.gate.baseline import Baseline, same

# Cells that differ in one of these alone are the same thing measured in another way.
_WAYS = tuple(COLUMNS.index(name) for name in COLUMNS if name not in ("operation", "backend", "size_bytes"))
_OTHER_MACHINES = {"topology", "machine"}


def check(baseline: Baseline, candidate: Sequence[Allocation], cells: Collection[Cell]) -> None:
    """Raises UsageError where nothing can be judged; `cells` are the baseline's."""
    twice = next(((each, held) for each in candidate for held in baseline.allocations if same(each, held)), None)
    if twice is not None:
        known_as = "" if twice[0].name == twice[1].name else f" as {twice[1].name}"
        raise UsageError(
            f"allocation {twice[0].name} is in the baseline {baseline.path}{known_as}: it cannot be judged by itself; drop it there first"
        )
    check_apart(candidate)
    _check_origins(baseline, candidate)
    _check_cells(baseline, candidate[0], cells)


def check_apart(candidate: Sequence[Allocation]) -> None:
    """Raises UsageError where two are one and the same."""
    if len({each.name for each in candidate}) < len(candidate):
        raise UsageError("two of the candidate's allocations have one name: each counts once; measure with another --allocation NAME")
    twins = next((pair for pair in combinations(candidate, 2) if same(*pair)), None)
    if twins is not None:
        raise UsageError(f"{twins[0].name} and {twins[1].name} are one allocation under two names: each counts once; measure a fresh one")


def _check_origins(baseline: Baseline, candidate: Sequence[Allocation]) -> None:
    of_baseline = baseline.allocations[0].imported
    other = next((each for each in candidate if each.imported is not of_baseline), None)
    if other is not None:
        here, there = ("imported", "was measured here") if other.imported else ("measured here", "was imported")
        raise UsageError(
            f"allocation {other.name} was {here} and the baseline {baseline.path} {there}: another tool's statistic is not our median; "
            "judge like by like"
        )


def _check_cells(baseline: Baseline, first: Allocation, cells: Collection[Cell]) -> None:
    if any(cell in first.cells for cell in cells):
        return
    way = differing_way(cells, first.cells)
    why = f" ({way})" if way else ""
    raise UsageError(f"allocation {first.name} has no cell in common with {baseline.path}{why}: measure the same suite")


def differing_way(wanted: Collection[Cell], there: Collection[Cell]) -> str | None:
    """In what alone cells that are wanted differ from those that are there: "mode is pipelined, and isolated in the baseline"."""
    found = Counter[tuple[str, object, object]]()
    for place in _WAYS:
        others = {(*cell[:place], *cell[place + 1 :]): cell[place] for cell in there}
        for cell in wanted:
            key = (*cell[:place], *cell[place + 1 :])
            if key in others and others[key] != cell[place]:
                found[COLUMNS[place], others[key], cell[place]] += 1
    if not found:
        return None
    (name, here, wants), _ = found.most_common(1)[0]
    return f"{name} is {_word(here)}, and {_word(wants)} in the baseline"


def _word(value: object) -> str:
    return "unset" if value is None else str(value)


def of_another_cluster(baseline: Baseline, candidate: Allocation, found: Sequence[Difference]) -> str | None:
    """A sentence where no host is in the baseline and the machines are others, too; `found` are unexpected changes."""
    held = {host for each in baseline.allocations for host in _hosts(each)}
    hosts = _hosts(candidate)
    if not held or not hosts or held & hosts or not any(each.kind in _OTHER_MACHINES for each in found):
        return None
    return (
        f"allocation {candidate.name} ran on {_few(hosts)} and {baseline.path} is of {_few(held)}, whose machines are others: "
        "the baseline of another cluster; make one of this"
    )


def _hosts(allocation: Allocation) -> set[str]:
    return {name for name in allocation.facts.get("hosts", {}).get("names", "").split(", ") if name}


def _few(names: Collection[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:3]) + (f" and {len(ordered) - 3} more" if len(ordered) > 3 else "")
