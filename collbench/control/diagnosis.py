"""Why a launch does not go on: a value with fields, rendered as one sentence here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from collbench.control.path_fault import PathFault

_MOST_NAMED = 4


class Cause(Enum):
    """What was found. Every cause but those of paths belongs to ranks."""

    ENDED = "process ended"
    STOPPED = "process stopped"
    PATH = "path drops packets"
    CONTROL_LOST = "control connection lost"
    HOST_SILENT = "host does not answer"
    NO_ANSWER = "no answer"
    RELAYED = "no answer through the first rank of the node"
    UNREACHABLE = "rank 0 cannot be reached"
    PROCESS_SILENT = "process does not answer"
    BEHIND = "behind the others"
    ELSEWHERE = "in another phase"
    NOTHING_MOVES = "no rank is behind"


@dataclass(frozen=True)
class HangDiagnosis:
    """One cause with its evidence.

    phase      where the others wait, or the rank was last
    ranks      those that are named; names: "rank 13 (node07, pid 4242)" each
    waiting    how many of `members` wait for them; timeout_s: the deadline
    detail     how the process ended, the phase that it is at, or an address that answers
    iteration  of the timed loop, -1 without one; more: processes that ended later
    source, target   the hosts between which packets may be lost; "" where both are one
    path       the fault of a path
    doing      the innermost calls of the first rank named
    reporter   the rank that reports, where that is not rank 0
    """

    cause: Cause
    phase: str
    ranks: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    waiting: int = 0
    members: int = 0
    timeout_s: float = 0.0
    detail: str = ""
    iteration: int = -1
    more: int = 0
    source: str = ""
    target: str = ""
    path: PathFault | None = None
    doing: str = ""
    reporter: str = ""

    def __str__(self) -> str:
        return " ".join(self._text().split())

    def _text(self) -> str:
        if self.cause is Cause.ENDED:
            more = f"; {self.more} more did so after it" if self.more else ""
            return f"{self._named} ended without a word{f' during {self.phase}' if self.phase else ''}: {self.detail}{more}"
        if self.cause is Cause.NOTHING_MOVES:
            return (
                f"hang: {self.phase}: all {self.members} ranks answer, and none is behind the others{_iteration(self.iteration)}: "
                f"the path between them carries nothing, or {self.timeout_s:g} s is too short a --timeout"
            )
        if self.cause is Cause.PATH:
            return f"hang: {self.phase}: {self.path} (--timeout {self.timeout_s:g})"
        seen = f"; as {self.reporter} sees it" if self.reporter else f"; {self._waiting}"
        return f"hang: {self.phase}: {self._finding}{seen}{f'; it is in {self.doing}' if self.doing else ''}"

    @property
    def _finding(self) -> str:
        one = len(self.ranks) == 1
        is_, does, its = ("is", "does", "its") if one else ("are", "do", "their")
        they = "it is" if one else "they are"
        if self.cause is Cause.NO_ANSWER:
            return f"no answer received from {self._named}: {they} stopped, or the path from {self.source} to {self.target} drops packets"
        return f"{self._named} " + {
            Cause.STOPPED: f"{is_} stopped (SIGSTOP, or a debugger holds it)",
            Cause.CONTROL_LOST: f"lost {its} control connection: the host answers at {self.detail}, "
            "but does not acknowledge what rank 0 sends",
            Cause.HOST_SILENT: f"{is_} on a host that does not answer: it is dead, or its link is cut",
            Cause.PROCESS_SILENT: f"{does} not answer, though the host does: stopped, or inside a call that holds its Python",
            Cause.RELAYED: f"{does} not answer; the answers come through the first rank of this node",
            Cause.UNREACHABLE: f"cannot be reached: the host is dead, or the path between {self.source} and {self.target} is cut",
            Cause.BEHIND: f"never entered iteration {self.iteration}"
            if self.iteration >= 0 and not self.detail
            else f"never came: {they} still at {self.detail}{_iteration(self.iteration)}",
            Cause.ELSEWHERE: f"{is_} elsewhere: at {self.detail}",
        }[self.cause]  # fmt: skip

    @property
    def _named(self) -> str:
        return named(self.names)

    @property
    def _waiting(self) -> str:
        return f"{self.waiting} of {self.members} ranks {'wait' if self.waiting != 1 else 'waits'} (--timeout {self.timeout_s:g})"

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for events.jsonl."""
        path = {"path": self.path.as_json()} if self.path else {}
        return {"cause": self.cause.value, "phase": self.phase, "ranks": list(self.ranks), **path}


def named(names: Sequence[str]) -> str:
    """Return some names, and how many more there are."""
    return ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _iteration(number: int) -> str:
    return f" in iteration {number}" if number >= 0 else ""
