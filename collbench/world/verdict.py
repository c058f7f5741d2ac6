"""Who did not arrive: from where all ranks stand to one sentence that names rank, host, process, operation and phase.

Told apart, in this order:
    a process that has ended            its node's kernel says so, or its connection was closed
    a process that is held              its node sees SIGSTOP, or a debugger
    a host that does not answer         it is dead, or the link to it is cut; or its control connection alone is
    a process that does not answer      its host does: it is stopped, or its Python is held
    a rank that is elsewhere            it answers, and is in another phase, or iterations behind
    nobody                              no rank is behind: the measured path carries nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from collbench.world.standing import Standing

_MOST_NAMED = 4


@dataclass(frozen=True)
class Seen:
    """What the coordinator knows when nothing moves.

    what         the phase that somebody is stuck in; "" when a process has ended
    members      by rank how it is named: "rank 13 (node07, pid 4242)"
    answers      where those that answered stand
    heard        where each rank stood when it was last heard of
    gone         whose process has ended, in the order of their ends
    how          by rank how its process ended, where that is known: "killed by signal 9 (SIGKILL)"
    beside       by rank who else may have died instead, where a launcher kills all of a host for one
    held         whose process is held by SIGSTOP or a debugger, as its node says
    unreachable  whose host's kernel does not acknowledge rank 0's messages
    elsewhere    by rank an address at which its host answers nevertheless
    spokesmen    by rank the one that speaks for it: the first of its node
    doing        by rank the innermost calls that it is in
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


@dataclass(frozen=True)
class Told:
    """The sentence, and the ranks it accuses."""

    text: str
    ranks: tuple[int, ...]


def sentence(seen: Seen) -> Told:
    """Who is the reason."""
    ended = [rank for rank in seen.gone if rank not in seen.held]
    silent = sorted(set(seen.members) - set(seen.answers) - set(seen.gone) - set(seen.held))
    if ended:
        told = _ended(seen, ended)
    elif seen.held:
        ranks = tuple(sorted(seen.held))
        told = _hang(seen, ranks, f"{_is(ranks)} stopped (SIGSTOP, or a debugger holds it)")
    elif silent:
        told = _silent(seen, silent)
    else:
        told = _behind(seen)
    return Told(" ".join(told.text.split()), told.ranks)


def _ended(seen: Seen, ended: Sequence[int]) -> Told:
    first, where = ended[0], _where(seen, ended)
    why = seen.how.get(first) or f"killed, crashed or out of memory{seen.beside.get(first, '')}"
    more = f"; {len(ended) - 1} more did so after it" if len(ended) > 1 else ""
    return Told(f"{_named(seen, [first])} ended without a word{f' during {where}' if where else ''}: {why}{more}", (first,))


def _silent(seen: Seen, silent: Sequence[int]) -> Told:
    cut = tuple(rank for rank in silent if rank in seen.unreachable)
    if cut and (address := next((seen.elsewhere[rank] for rank in cut if rank in seen.elsewhere), None)):
        why = f"lost {_its(cut)} control connection: the host answers at {address}, but does not acknowledge what rank 0 sends"
        return _hang(seen, cut, why)
    if cut:
        return _hang(seen, cut, f"{_is(cut)} on a host that does not answer: it is dead, or its link is cut")
    alone = tuple(rank for rank in silent if seen.spokesmen.get(rank, rank) not in set(silent) - {rank})
    ranks = alone or tuple(silent)
    return _hang(seen, ranks, f"{_does(ranks)} not answer, though the host does: stopped, or inside a call that holds its Python")


def _behind(seen: Seen) -> Told:
    usual, where = _usual(seen)
    late = {rank: one for rank, one in seen.answers.items() if not one.waits and one.place < usual}
    if late and 2 * len(late) <= len(seen.answers):
        last = min(one.place for one in late.values())
        ranks = tuple(sorted(rank for rank, one in late.items() if one.place == last))
        return _hang(seen, ranks, _how_late(seen.answers[ranks[0]], usual, where, ranks), where)
    odd = tuple(sorted(rank for rank, one in seen.answers.items() if one.place == usual and one.phase != where and not one.waits))
    if odd and 2 * len(odd) < len(seen.answers):
        return _hang(seen, odd, f"{_is(odd)} elsewhere: at {seen.answers[odd[0]].phase or 'work between two phases'}", where)
    all_of = f"hang: {where or seen.what}: all {len(seen.answers)} ranks answer, and none is behind the others{_iteration(usual)}"
    return Told(f"{all_of}: the path between them carries nothing, or {seen.timeout_s:g} s is too short a --timeout", ())


def _usual(seen: Seen) -> tuple[tuple[int, int], str]:
    """Where most ranks are, as place and phase; of places with as many ranks the furthest."""
    places = Counter(one.place for one in seen.answers.values())
    usual = max(places, key=lambda place: (places[place], place))
    phases = Counter(one.phase for one in seen.answers.values() if one.place == usual)
    return usual, max(phases, key=lambda phase: (phases[phase], phase))


def _how_late(one: Standing, usual: tuple[int, int], where: str, ranks: Sequence[int]) -> str:
    if one.phase == where and one.step == usual[0]:
        return f"never entered iteration {usual[1]}"
    who = "they are" if len(ranks) > 1 else "it is"
    return f"never came: {who} still at {one.phase or 'work between two phases'}{_iteration(one.place)}"


def _iteration(place: tuple[int, int]) -> str:
    return f" in iteration {place[1]}" if place[1] >= 0 else ""


def _where(seen: Seen, ranks: Sequence[int]) -> str:
    """The phase: where somebody is stuck, or else where the others wait, or where the rank was when it was last heard of."""
    last = [seen.heard[rank].phase for rank in ranks if rank in seen.heard]
    return seen.what or (_usual(seen)[1] if seen.answers else "") or next(filter(None, last), "")


def _hang(seen: Seen, ranks: tuple[int, ...], how: str, where: str = "") -> Told:
    others = len(seen.answers.keys() - set(ranks) - set(seen.held))
    wait = f"{others} of {len(seen.members)} ranks {'wait' if others != 1 else 'waits'} (--timeout {seen.timeout_s:g})"
    doing = next((f"; it is in {seen.doing[rank]}" for rank in ranks if seen.doing.get(rank)), "")
    return Told(f"hang: {where or _where(seen, ranks)}: {_named(seen, ranks)} {how}; {wait}{doing}", ranks)


def _named(seen: Seen, ranks: Sequence[int]) -> str:
    shown = ", ".join(seen.members.get(rank, f"rank {rank}") for rank in ranks[:_MOST_NAMED])
    return shown + (f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else "")


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _does(ranks: Sequence[int]) -> str:
    return "does" if len(ranks) == 1 else "do"


def _its(ranks: Sequence[int]) -> str:
    return "its" if len(ranks) == 1 else "their"
