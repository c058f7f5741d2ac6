"""From where all ranks are to one diagnosis of a hang.

Checked in this order:
    a process that has ended            its node's kernel reports it, or its connection was closed
    a process that is held              its node sees SIGSTOP, or a debugger
    a path that drops large packets     probes of several sizes show it
    a host that does not answer         it is dead, or the link to it is cut; or only its control connection is
    a process that does not answer      on this host: it is stopped, or its Python is held; on another one the path may drop packets
    a path that loses packets           connections of the ranks show it
    a rank that is elsewhere            it answers, and is in another phase, or iterations behind
    none of these                       no rank is behind: the measured path carries nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collbench.control.diagnosis import Cause, HangDiagnosis
from collbench.control.path_fault import PathFault, PathProblem
from collbench.control.standing import Standing

_BETWEEN = "work between two phases"


@dataclass(frozen=True)
class HangEvidence:
    """What the coordinator knows when nothing moves.

    what         the phase that a rank is stuck in; "" when a process has ended
    members      by rank how it is named: "rank 13 (node07, pid 4242)"
    answers      where those that answered are
    heard        where each rank was when it was last heard
    gone         ranks whose process has ended, in the order of their ends
    how          by rank how its process ended, where that is known: "killed by signal 9 (SIGKILL)"
    beside       by rank which others may have died instead, where a launcher kills all of a host for one
    held         ranks whose process is held by SIGSTOP or a debugger, as their node reports
    unreachable  ranks whose host's kernel does not acknowledge rank 0's messages
    elsewhere    by rank an address at which its host answers nevertheless
    spokesmen    by rank the one that its messages come through: the first of its node
    doing        by rank the innermost calls that it is in
    hosts        by rank the name of its host
    path         a fault of the path between two hosts
    """

    what: str
    timeout_s: float
    members: Mapping[int, str]
    answers: Mapping[int, Standing]
    heard: Mapping[int, Standing] = field(default_factory=dict)
    gone: Sequence[int] = ()
    how: Mapping[int, str] = field(default_factory=dict)
    beside: Mapping[int, str] = field(default_factory=dict)
    held: Collection[int] = ()
    unreachable: Collection[int] = ()
    elsewhere: Mapping[int, str] = field(default_factory=dict)
    spokesmen: Mapping[int, int] = field(default_factory=dict)
    doing: Mapping[int, str] = field(default_factory=dict)
    hosts: Mapping[int, str] = field(default_factory=dict)
    path: PathFault | None = None


def diagnose(seen: HangEvidence) -> HangDiagnosis:
    """Return the cause of a hang."""
    ended = [rank for rank in seen.gone if rank not in seen.held]
    silent = sorted(set(seen.members) - set(seen.answers) - set(seen.gone) - set(seen.held))
    if ended:
        return _ended(seen, ended)
    if seen.held:
        return _hang(seen, Cause.STOPPED, tuple(sorted(seen.held)))
    if seen.path and (seen.path.problem in (PathProblem.MTU, PathProblem.ONE_WAY) or not silent):
        return _of_path(seen, seen.path)
    return _silent(seen, silent) if silent else _behind(seen)


def _of_path(seen: HangEvidence, path: PathFault) -> HangDiagnosis:
    where = seen.what or (_usual(seen)[1] if seen.answers else "") or _BETWEEN
    return HangDiagnosis(Cause.PATH, where, members=len(seen.members), timeout_s=seen.timeout_s, path=path)


def _ended(seen: HangEvidence, ended: Sequence[int]) -> HangDiagnosis:
    first = ended[0]
    why = seen.how.get(first) or f"killed, crashed or out of memory{seen.beside.get(first, '')}"
    return HangDiagnosis(
        Cause.ENDED, _where(seen, ended), (first,), _names(seen, (first,)), detail=why, more=len(ended) - 1, members=len(seen.members),
        timeout_s=seen.timeout_s,
    )  # fmt: skip


def _silent(seen: HangEvidence, silent: Sequence[int]) -> HangDiagnosis:
    cut = tuple(rank for rank in silent if rank in seen.unreachable)
    if cut and (address := next((seen.elsewhere[rank] for rank in cut if rank in seen.elsewhere), None)):
        if seen.path and seen.path.target in {seen.hosts.get(rank) for rank in cut} and _more_than_control(seen.path):
            return _of_path(seen, seen.path)
        return _hang(seen, Cause.CONTROL_LOST, cut, detail=address)
    if cut:
        return _hang(seen, Cause.HOST_SILENT, cut)
    alone = tuple(rank for rank in silent if seen.spokesmen.get(rank, rank) not in set(silent) - {rank})
    ranks = alone or tuple(silent)
    host, here = seen.hosts.get(ranks[0], ""), seen.hosts.get(0, "")
    if host == here:
        return _hang(seen, Cause.PROCESS_SILENT, ranks)
    if seen.path and seen.path.problem is PathProblem.LOSS and host in (seen.path.source, seen.path.target):
        return _of_path(seen, seen.path)
    return _hang(seen, Cause.NO_ANSWER, ranks, source=host, target=here)


def _more_than_control(path: PathFault) -> bool:
    """Return whether data are lost as well."""
    return path.problem is not PathProblem.STALLED or path.stalled > 1


def _behind(seen: HangEvidence) -> HangDiagnosis:
    usual, where = _usual(seen)
    late = {rank: one for rank, one in seen.answers.items() if not one.waits and one.place < usual}
    if late and 2 * len(late) <= len(seen.answers):
        last = min(one.place for one in late.values())
        ranks = tuple(sorted(rank for rank, one in late.items() if one.place == last))
        return _hang(seen, Cause.BEHIND, ranks, where, **_how_late(seen.answers[ranks[0]], usual, where))
    odd = tuple(sorted(rank for rank, one in seen.answers.items() if one.place == usual and one.phase != where and not one.waits))
    if odd and 2 * len(odd) < len(seen.answers):
        return _hang(seen, Cause.ELSEWHERE, odd, where, detail=seen.answers[odd[0]].phase or _BETWEEN)
    return HangDiagnosis(
        Cause.NOTHING_MOVES, where or seen.what, members=len(seen.answers), timeout_s=seen.timeout_s, iteration=usual[1]
    )  # fmt: skip


def _usual(seen: HangEvidence) -> tuple[tuple[int, int], str]:
    """Return where most ranks are, as place and phase; of places with as many ranks the furthest."""
    places = Counter(one.place for one in seen.answers.values())
    usual = max(places, key=lambda place: (places[place], place))
    phases = Counter(one.phase for one in seen.answers.values() if one.place == usual)
    return usual, max(phases, key=lambda phase: (phases[phase], phase))


def _how_late(one: Standing, usual: tuple[int, int], where: str) -> dict[str, Any]:
    if one.phase == where and one.step == usual[0]:
        return {"iteration": usual[1]}
    return {"detail": one.phase or _BETWEEN, "iteration": one.place[1]}


def _where(seen: HangEvidence, ranks: Sequence[int]) -> str:
    """Return the phase: where a rank is stuck, or else where the others wait, or where the rank was when it was last heard."""
    last = [seen.heard[rank].phase for rank in ranks if rank in seen.heard]
    return seen.what or (_usual(seen)[1] if seen.answers else "") or next(filter(None, last), "")


def _hang(seen: HangEvidence, cause: Cause, ranks: tuple[int, ...], where: str = "", **more: Any) -> HangDiagnosis:
    others = len(seen.answers.keys() - set(ranks) - set(seen.held))
    found = HangDiagnosis(
        cause, where or _where(seen, ranks), ranks, _names(seen, ranks), others, len(seen.members), seen.timeout_s,
        doing=next((seen.doing[rank] for rank in ranks if seen.doing.get(rank)), ""),
    )  # fmt: skip
    return replace(found, **more)


def _names(seen: HangEvidence, ranks: Sequence[int]) -> tuple[str, ...]:
    return tuple(seen.members.get(rank, f"rank {rank}") for rank in ranks)
