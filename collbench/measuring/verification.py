"""Verify the data that the timed calls move: fill the memory anew, run the calls, and compare each element that must have arrived."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec.structs import asdict, replace

from collbench.measuring.prepared_case import PreparedCase, phase
from collbench.operations.data import Mismatch, slots_checked
from collbench.results.row import WrongData
from collbench.units import format_time, plural

if TYPE_CHECKING:
    from collbench.control.world import World

_WORST = 16


class DataError(Protocol):
    """The result of verification at one rank: the number of wrong elements (of a barrier: 1), and a sentence about them."""

    @property
    def rank(self) -> int:
        """The rank, numbered as in the job."""

    @property
    def wrong(self) -> int:
        """The number of wrong elements, or ranks."""

    def sentence(self) -> str:
        """Return the sentence for rows and errors."""

    def as_json(self) -> dict[str, Any]:
        """Return the rank and its errors, JSON-ready, for a row's evidence."""


class VerificationTurn(msgspec.Struct, frozen=True):
    """One turn of verification at this rank: fill memory with data that differs by rank and call, run the calls once, compare.

    fills     each fills a part of the memory
    run       runs the calls
    compares  each returns the mismatches in a part of what arrived
    what      the part of the work, for messages; "": all of it
    meets     whether the ranks wait for one another between filling and running, since one-sided calls must not come before
    """

    fills: Sequence[Callable[[], object]]
    run: Callable[[], object]
    compares: Sequence[Callable[[], Iterable[Mismatch]]]
    what: str = ""
    meets: bool = False


def verify(ready: PreparedCase, world: World, checks: Iterable[VerificationTurn]) -> list[Mismatch] | None:
    """Run the checks on all ranks. Return the mismatches of all ranks at rank 0, None elsewhere.

    Each step is a phase of the watchdog, since each is progress: with many calls, buffers or bytes, all of them may exceed the timeout.
    """
    mismatches: list[dict[str, Any]] = []
    for check in checks:
        verifying = f"verifying {check.what}" if check.what else "verifying"
        for fill in check.fills:
            with phase(ready, world, f"{verifying}: filling buffers"):
                fill()
        if check.meets:
            world.allgather(None, f"{ready.case.title()}: {verifying}")
        with phase(ready, world, verifying):
            check.run()
        for compare in check.compares:
            with phase(ready, world, f"{verifying}: comparing data"):
                mismatches += [mismatch.as_json() for mismatch in compare()]
    all_ranks = world.gather(mismatches, f"{ready.case.title()}: verifying")
    return None if all_ranks is None else [Mismatch(**values) for errors in all_ranks for values in errors]


def checks_of_buffers(ready: PreparedCase, calls: int) -> Iterator[VerificationTurn]:
    """Yield the checks of a case: so many times each buffer slot that must be verified."""
    for _ in range(calls):
        for slot in slots_checked(ready.case):
            fills = [partial(buffers.fill, slot, for_check=True) for buffers in ready.buffers]
            yield VerificationTurn(fills, partial(ready.checking.run, 1, slot=slot), [partial(mismatches_in, ready, slot)])


def mismatches_in(ready: PreparedCase, slot: int) -> list[Mismatch]:
    """Return the wrong data that this process's ranks received in a slot. Ranks are numbered as in the job."""
    mismatches: list[Mismatch] = []
    for group, buffers in zip(ready.own_groups, ready.buffers, strict=True):
        mismatches += [replace(mismatch, rank=group.ranks[mismatch.rank]) for mismatch in buffers.check(slot) if mismatch]
    return mismatches


# The result of verification in rows and messages.


def check_fields(calls: int, errors: Sequence[DataError]) -> dict[str, Any]:
    """Return the fields of a row that verification sets."""
    detail = "; ".join(error.sentence() for error in errors[:4]) or None
    return {"checked": calls, "wrong": sum(error.wrong for error in errors) if calls else None, "wrong_detail": detail}


def wrong_evidence(errors: Sequence[DataError]) -> dict[str, Any]:
    """Return for a row's evidence how many ranks had wrong data, and the errors of the first ones; empty if all data was right."""
    first = [error.as_json() for error in errors[:_WORST]]
    return WrongData(len(errors), first).entry() if first else {}


# Whether a barrier works: no rank may leave it before all ranks have entered.
#
# Some ranks enter late, one per attempt. All ranks meet over the control plane, then the late rank waits for a delay. The other ranks
# record how long after their own arrival at the meeting they left the barrier. The late rank enters at least its delay after the meeting,
# which ends only after all ranks have arrived. So a rank that left within the delay has left too early, independent of its own delays. Such
# delays can hide an error: if a rank reached the barrier only after the delay, the attempt is repeated with a longer one.

_MOST_LATE = 4
_ATTEMPTS = 3
_DELAY_S = 0.01
_MEETINGS = 5  # the delay as a multiple of the slowest rank's meeting
_LONGER = 4  # factor of the delay at the next attempt
_CLOCKS = 0.98  # clocks of hosts differ by up to 500 ppm, and timers round


class LeftEarly(msgspec.Struct, frozen=True):
    """A rank that left a barrier before another rank had entered it.

    It left `after_s` seconds after the meeting. Rank `late` had not entered yet: it waited `delay_s` seconds.
    """

    rank: int
    late: int
    after_s: float
    delay_s: float
    wrong: int = 1

    def sentence(self) -> str:
        """Return the text for rows and errors: "rank 1 left after 210.0 µs, before rank 0 entered, which waited 10000 µs"."""
        delay = f"before rank {self.late} entered, which waited {format_time(self.delay_s)} µs"
        return f"rank {self.rank} left after {format_time(self.after_s)} µs, {delay}"

    def as_json(self) -> dict[str, Any]:
        """Return the fields for the control plane and a row's evidence."""
        return asdict(self)


def left_early(ready: PreparedCase, world: World, calls: int) -> tuple[int, list[LeftEarly]]:
    """Return (calls verified, the ranks that left a barrier early, each once), the same at all ranks. All ranks must call it.

    The number is 0 if it cannot be verified, since ranks of one process or of a simulating backend have no separate time.
    """
    first_by_rank: dict[int, LeftEarly] = {}
    can_verify = True
    for late in _late_ranks(ready) * calls:
        is_known, early = _turn(ready, world, late)
        can_verify = can_verify and is_known
        for rank_error in early:
            first_by_rank.setdefault(rank_error.rank, rank_error)
    return calls if can_verify or first_by_rank else 0, [first_by_rank[rank] for rank in sorted(first_by_rank)]


def _late_ranks(ready: PreparedCase) -> list[int]:
    """Return the ranks that enter late in turn, as ranks within each group: all up to 4, else a sample drawn by the case's seed."""
    n = len(ready.groups[0])
    return sorted(random.Random(ready.case.seed).sample(range(n), min(n, _MOST_LATE))) if n > 1 else []


def _turn(ready: PreparedCase, world: World, late: int) -> tuple[bool, list[LeftEarly]]:
    """Return (whether every other rank reached the barrier in time, the ranks that left early), after three attempts at most."""
    ranks_to_judge = sum(len(ranks) - 1 for ranks in ready.groups)
    early: list[LeftEarly] = []
    doing = f"{ready.case.title()}: verifying"
    for attempt in range(_ATTEMPTS):
        world.allgather(None, doing)  # the ranks leave it nearly at the same time
        began = time.monotonic()
        world.allgather(None, doing)
        meeting_s = max(world.allgather(time.monotonic() - began, doing))
        delay_s = max(meeting_s * _MEETINGS, _DELAY_S * _LONGER**attempt)
        replies = world.allgather(_attempt(ready, world, late, delay_s, doing), doing)
        early += [LeftEarly(**values) for reply in replies for values in reply["early"]]
        if early or not any(reply["late_itself"] for reply in replies):
            return bool(early) or sum(reply["judged"] for reply in replies) == ranks_to_judge, early
    return False, early


def _attempt(ready: PreparedCase, world: World, late: int, delay_s: float, doing: str) -> dict[str, Any]:
    """Run one barrier.

    Return which of this process's ranks left early, for how many that is known, and whether they came too late for it.
    """
    waits = any(late in group.driven for group in ready.own_groups)
    began = time.monotonic()
    world.allgather(None, doing)
    if waits:
        time.sleep(delay_s)
    came_s = time.monotonic() - began
    with phase(ready, world, "verifying"):
        ready.checking.run(1, slot=0)
    left_s = time.monotonic() - began
    others = [] if waits else [(group, rank) for group in ready.own_groups for rank in group.driven]
    early = others if left_s < delay_s * _CLOCKS else []
    return {
        "judged": len(others), "late_itself": bool(others) and came_s >= delay_s,
        "early": [LeftEarly(group.ranks[rank], group.ranks[late], left_s, delay_s).as_json() for group, rank in early],
    }  # fmt: skip


# Wrong data between places, for launches that measure rounds.

_MOST_LISTED = 4  # groups, and places of each


def wrong_data(
    names: Sequence[str], met: Iterable[tuple[Sequence[int], int | None, str | None]], kind: Literal["pair", "group"]
) -> list[str]:
    """Return a sentence for each of the first groups with wrong data, and one with the number of further groups.

    met: for each group its places, the number of wrong elements (None: not compared), and the errors of its first rank
    or None.
    """
    sentences = []
    for places, wrong, detail in met:
        if not wrong:
            continue
        listed = [names[place] for place in places]
        where = f"between {' and '.join(listed)}" if len(listed) > 1 else f"inside {listed[0]}"
        if len(listed) > _MOST_LISTED:
            where = f"among {', '.join(listed[:_MOST_LISTED])} and {len(listed) - _MOST_LISTED} more"
        differ = "differs" if wrong == 1 else "differ"
        errors = f" ({detail})" if detail else ""
        sentences.append(f"wrong data {where}: {plural(wrong, 'element')} {differ} from what was sent{errors}")
    unlisted = len(sentences) - _MOST_LISTED
    if unlisted > 0:
        sentences[_MOST_LISTED:] = [f"wrong data in {plural(unlisted, f'more {kind}')}"]
    return sentences
