"""Floors (`--min-percent`): a required share of the ceiling for given sizes and a given model, which needs no history.

Each case has to reach it, not an average over sizes: 1 KiB never reaches 80 % of a link, and 1 GiB may hide that 64 MiB does not.
As in the rule, below in one allocation is suspected, and below in three is confirmed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from collbench.analysis.ceilings import OF_LINKS, LinkCeiling
from collbench.errors import UsageError
from collbench.gating.allocation import Allocation, ShownFigures, case_names, name_of
from collbench.gating.baseline import fresh
from collbench.gating.reasons import FloorUnknown, SuspectedBelowFloor
from collbench.gating.rule import CONFIRMATIONS
from collbench.gating.verdict import CLEARED, CONFIRMED, SUSPECTED, UNDECIDED, FloorState
from collbench.machine.peak.ceiling import Ceiling
from collbench.results.row import CaseKey
from collbench.units import parse_size

HARD = "hard"
MODELS = ("ring", HARD, "network", "measured", "given", "simulated")
_FORM = re.compile(r"(?P<model>[^:@]+):(?P<percent>[^:@]+)@(?P<sizes>[^/+]+)(?:/(?P<operation>[^/+]+))?(?:\+(?P<backend>[^/+]+))?")
_NUMBER = re.compile(r"\d{1,3}(\.\d{1,6})?", re.ASCII)
_LONGEST = 200


@dataclass(frozen=True)
class Floor:
    """A required share of the ceiling.

    asked    as it was typed: "ring:80@64M-"
    model    "ring": the expected bandwidth by an algorithm; "hard": the hard limit; else the ceiling's kind, the source of its figure
    percent  of the ceiling, at least
    smallest, largest   the sizes it applies to, in bytes; None: unlimited
    operation, backend  patterns (`*` is anything) of the cases it applies to
    """

    asked: str
    model: str
    percent: float
    smallest: int
    largest: int | None
    operation: str = "*"
    backend: str = "*"

    def meant(self, case: CaseKey) -> bool:
        """Return whether it applies to this case; never to one that moves no data."""
        size = case.size_bytes
        fits = size > 0 and self.smallest <= size and (self.largest is None or size <= self.largest)
        return fits and fnmatchcase(case.operation, self.operation) and fnmatchcase(case.backend, self.backend)


def floor_states(
    floors: Sequence[Floor], candidate: Sequence[Allocation], confirmations: int = CONFIRMATIONS, before: Sequence[LinkCeiling] = ()
) -> list[FloorState]:
    """Return the cases below a floor or with an unknown share, in the order of the first allocation's cases.

    confirmations  the number of allocations below the floor that makes a case confirmed
    before   the baseline's ceilings: where a ceiling fell since, the share is that of the old one, so that it shows a slower link

    Raises UsageError if a floor applies to no case of the first allocation, since it could never fail.
    """
    idle = next((each.asked for each in floors if not any(map(each.meant, candidate[0].cases))), None)
    if idle is not None:
        raise UsageError(f"--min-percent {idle}: allocation {candidate[0].name} has no such case; measure those sizes, or change it")
    were = {each.key: each for each in before}
    states = (_state(floor, case, candidate, confirmations, were) for case in candidate[0].cases for floor in floors if floor.meant(case))
    return [each for each in states if each is not None]


def floor_reasons(states: Sequence[FloorState]) -> list[SuspectedBelowFloor | FloorUnknown]:
    """Return why these states prevent a pass. A confirmed one has no reason here: it is a regression."""
    suspected = [each for each in states if each.state == SUSPECTED]
    found: list[SuspectedBelowFloor | FloorUnknown] = (
        [SuspectedBelowFloor(case_names(each.name for each in suspected))] if suspected else []
    )
    unknown = [each for each in states if each.state == UNDECIDED]
    for text in dict.fromkeys(each.asked for each in unknown):
        found.append(FloorUnknown(text, case_names(each.name for each in unknown if each.asked == text)))
    return found


def _state(
    floor: Floor, case: CaseKey, candidate: Sequence[Allocation], confirmations: int, before: Mapping[tuple[Any, ...], LinkCeiling]
) -> FloorState | None:
    """Return the state of a case; None if the first allocation reaches the floor. Several allocations of one job count once."""
    shares = [_against(before, case, *_share(floor, each.shown.get(case))) for each in candidate]
    percents = tuple(percent for percent, _ in shares)
    first, ceiling = percents[0], next((found for _, found in shares if found is not None), None)
    if first is not None and first >= floor.percent:
        return None
    below = sum(percent is not None and own for percent, own in zip(percents, fresh(candidate), strict=True))
    state = CONFIRMED if below >= confirmations else SUSPECTED
    if first is None:
        state = UNDECIDED
    elif any(percent is not None and percent >= floor.percent for percent in percents):
        state = CLEARED
    limited_by, model = (ceiling.limited_by, ceiling.model) if ceiling is not None else (None, None)
    return FloorState(name_of(case), case.named(), floor.asked, floor.percent, percents, limited_by, model, state)


def _against(
    before: Mapping[tuple[Any, ...], LinkCeiling], case: CaseKey, percent: float | None, ceiling: Ceiling | None
) -> tuple[float | None, Ceiling | None]:
    """Return the share of the baseline's ceiling where that is higher, with that ceiling."""
    if ceiling is None or not ceiling.bytes_per_s or ceiling.kind not in OF_LINKS:
        return percent, ceiling
    was = before.get((case.operation, case.backend, case.group, case.ranks, case.nodes, case.traffic, ceiling.model, ceiling.constants))
    if was is None or was.bytes_per_s <= ceiling.bytes_per_s:
        return percent, ceiling
    share = None if percent is None else percent * ceiling.bytes_per_s / was.bytes_per_s
    return share, replace(ceiling, bytes_per_s=was.bytes_per_s, limited_by=f"{was.limited_by}, the baseline's ceiling")


def _share(floor: Floor, shown: ShownFigures | None) -> tuple[float | None, Ceiling | None]:
    """Return (percent, ceiling) for the floor's model; the ceiling alone where no valid share is known."""
    if shown is None or shown.ceiling is None or not shown.ceiling.bytes_per_s:
        return None, None
    if floor.model != HARD:
        return (
            (shown.percent, shown.ceiling)
            if floor.model in (shown.ceiling.kind, "" if shown.ceiling.model == "bound" else "ring")
            else (None, None)
        )
    bound = shown.ceiling if shown.ceiling.model == "bound" else shown.bound
    if bound is None or not bound.bytes_per_s:
        return None, None
    return None if shown.percent is None else shown.percent * shown.ceiling.bytes_per_s / bound.bytes_per_s, bound


def read_floor(text: str) -> Floor:
    """Return the floor of a text such as "ring:80@64M-". Raises UsageError naming the invalid part."""
    parts = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    where = f"--min-percent {text[:_LONGEST]}"
    if parts is None:
        raise UsageError(f"{where}: not valid (use MODEL:PERCENT@SIZES, such as ring:75@1G- or hard:40@1G-/allreduce+nccl)")
    if parts["model"] not in MODELS:
        raise UsageError(f"{where}: unknown model '{parts['model']}': choose from {', '.join(MODELS)}")
    if not _NUMBER.fullmatch(parts["percent"]) or not 0 < float(parts["percent"]) <= 100:
        raise UsageError(f"{where}: '{parts['percent']}' is not a percentage above 0 and up to 100")
    return Floor(
        text, parts["model"], float(parts["percent"]), *sizes_of(parts["sizes"], where), parts["operation"] or "*", parts["backend"] or "*"
    )  # fmt: skip


def sizes_of(text: str, where: str) -> tuple[int, int | None]:
    """Return (smallest, largest) in bytes of "64M", "64M-", "-1M" or "1M-16M"; None is unlimited.

    Raises UsageError that begins with `where`.
    """
    low, dash, high = (part.strip() for part in text.partition("-"))
    try:
        smallest = parse_size(low) if low or not high else 1
        largest = parse_size(high) if high else None if dash else smallest
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if largest is not None and largest < smallest:
        raise UsageError(f"{where}: sizes '{text}' are in descending order: write the smaller one first")
    return smallest, largest
