"""The timeline of a step: each rank starts its exchanges, computes while they run, and waits for them.

All ranks start their exchanges in the order of the step, so that no library can connect calls that do not belong together. On a
backend that cannot start an exchange without waiting, each exchange runs to its end where it would start; this order then also keeps
the ranks from blocking one another. Such a step has the flag `no_overlap`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from collbench.errors import UsageError
from collbench.operations.builtin.p2p import P2P_MESSAGE
from collbench.operations.program import Call
from collbench.plugins.training.workloads.step import Action, Compute, Start, Step, Wait

NO_OVERLAP = "no_overlap"


def check_timeline(step: Step, ranks: int) -> None:
    """Raise UsageError for a timeline that is not complete.

    Each rank with actions must start each of its exchanges once, in their order, and wait for each once, after its start. A rank
    without actions has none, or is another process's.
    """
    if len(step.timeline) != ranks:
        raise UsageError(f"the step has the timelines of {len(step.timeline)} ranks, but {ranks} run it: start {len(step.timeline)}")
    for exchange in step.exchanges:
        if exchange.times != 1 or exchange.adds:
            raise UsageError(f"{exchange.what}: an exchange of a timeline runs once, and nothing adds its data up")
    exchanges_of: list[list[int]] = [[] for _ in range(ranks)]
    for number, exchange in enumerate(step.exchanges):
        for rank in {rank for group in exchange.groups for rank in group if 0 <= rank < ranks}:
            exchanges_of[rank].append(number)
    for rank, actions in enumerate(step.timeline):
        if actions:
            _check_rank(step, rank, actions, exchanges_of[rank])


def _check_rank(step: Step, rank: int, actions: Sequence[Action], exchanges: Sequence[int]) -> None:
    expected = deque(exchanges)
    running: set[int] = set()

    def name(number: int) -> str:
        return step.exchanges[number].what if 0 <= number < len(step.exchanges) else f"exchange {number}"

    for action in actions:
        match action:
            case Start(exchange):
                if not expected or expected[0] != exchange:
                    due = f"{name(expected[0])} is next" if expected else "it has no exchange left"
                    raise UsageError(f"the timeline of rank {rank} starts {name(exchange)} out of order: {due}")
                running.add(expected.popleft())
            case Wait(exchange):
                if exchange not in running:
                    raise UsageError(f"the timeline of rank {rank} waits for {name(exchange)}, which is not running")
                running.remove(exchange)
            case Compute(seconds):
                if not 0 <= seconds < float("inf"):
                    raise UsageError(f"the timeline of rank {rank} computes for {seconds} s: use a time of 0 or more")
    if expected or running:
        missing = f"start {name(expected[0])}" if expected else f"wait for {name(min(running))}"
        raise UsageError(f"the timeline of rank {rank} does not {missing}")


def slots_needed(actions: Sequence[Action], parts: Sequence[int], ordinals: Sequence[int], n_parts: int) -> list[int]:
    """Return by part how many buffers a rank needs, so that no exchange uses the buffer of one that it has started and not waited for.

    parts, ordinals: by exchange its part, and how many exchanges of this part come before it. Ordinal k uses buffer k modulo the number.
    """
    slots = [1] * n_parts
    running: list[set[int]] = [set() for _ in range(n_parts)]
    for action in actions:
        if isinstance(action, Start):
            part = parts[action.exchange]
            running[part].add(ordinals[action.exchange])
            slots[part] = max(slots[part], max(running[part]) - min(running[part]) + 1)
        elif isinstance(action, Wait):
            running[parts[action.exchange]].discard(ordinals[action.exchange])
    return slots


def calls_of(
    actions: Sequence[Action],
    start: Callable[[int], Sequence[Call]],
    wait: Callable[[int], Sequence[Call]],
    compute: Callable[[float], Sequence[Call]],
) -> Iterator[Call]:
    """Yield the calls of a rank. start, wait: return those of an exchange; compute: those of so many seconds."""
    for action in actions:
        match action:
            case Start(exchange):
                yield from start(exchange)
            case Wait(exchange):
                yield from wait(exchange)
            case Compute(seconds):
                yield from compute(seconds)


class _GroupRun(msgspec.Struct):
    """The exchange of one group: the ranks that have yet to start it, the latest start so far, and its end once all have.

    sender   of a message: its arrival depends on the sender alone, which does not wait for it; else None
    """

    missing: set[int]
    sender: int | None
    since: float = 0.0
    end: float | None = None


class _Simulation:
    """The times of the ranks' actions; see `timeline_s`."""

    def __init__(self, step: Step, seconds: Sequence[float]) -> None:
        self._step = step
        self._seconds = seconds
        self.ranks = [rank for rank, actions in enumerate(step.timeline) if actions]
        self.clock = dict.fromkeys(self.ranks, 0.0)
        self._place = dict.fromkeys(self.ranks, 0)
        self._group = [{rank: group for group in exchange.groups for rank in group} for exchange in step.exchanges]
        self._runs: dict[tuple[int, tuple[int, ...]], _GroupRun] = {}
        self._free: dict[tuple[int, ...], float] = {}
        self.waiting: dict[int, list[int]] = {}  # by exchange the ranks that wait for it
        self.end = 0.0

    def advance(self, rank: int) -> list[int]:
        """Run a rank until it waits for an exchange that has no end yet. Return the ranks that can go on."""
        actions = self._step.timeline[rank]
        woken: list[int] = []
        for place in range(self._place[rank], len(actions)):
            self._place[rank] = place
            match actions[place]:
                case Compute(seconds):
                    self.clock[rank] += seconds
                case Start(exchange):
                    woken += self._start(rank, exchange)
                case Wait(exchange):
                    run = self._run(rank, exchange)
                    if rank == run.sender:
                        continue
                    if run.end is None:
                        self.waiting.setdefault(exchange, []).append(rank)
                        return woken
                    self.clock[rank] = max(self.clock[rank], run.end)
        self._place[rank] = len(actions)
        return woken

    def _run(self, rank: int, exchange: int) -> _GroupRun:
        group = self._group[exchange][rank]
        key = (exchange, group)
        if key not in self._runs:
            sender = group[0] if self._step.exchanges[exchange].operation == P2P_MESSAGE.name else None
            missing = {member for member in group if self._step.timeline[member]}
            self._runs[key] = _GroupRun(missing, sender)
        return self._runs[key]

    def _start(self, rank: int, exchange: int) -> list[int]:
        """Start an exchange. Return the ranks that wait for its end, which is known when the last rank has started it."""
        run = self._run(rank, exchange)
        group = self._group[exchange][rank]
        run.missing.discard(rank)
        run.since = max(run.since, self.clock[rank] if run.sender in (None, rank) else 0.0)
        needed = run.missing if run.sender is None else run.missing & {run.sender}
        if needed or run.end is not None:
            return []
        run.end = self._free[group] = max(run.since, self._free.get(group, 0.0)) + self._seconds[exchange]
        self.end = max(self.end, run.end)
        return self.waiting.pop(exchange, [])


def timeline_s(step: Step, seconds: Sequence[float]) -> float:
    """Return the seconds of a step with a timeline, from those of each exchange alone.

    An exchange begins when all ranks of its group have started it and the group's previous exchange has ended; then it takes its own
    time, at all ranks. A message begins when its sender starts it, and the sender does not wait for its end, since a library may copy
    it. Exchanges of different groups overlap without slowing one another, although they may share a link. So with the least times
    of the exchanges it is a lower bound. A rank without a timeline here delays no other rank.

    Raises UsageError if the ranks wait for one another in a circle.
    """
    simulation = _Simulation(step, seconds)
    ready = deque(simulation.ranks)
    while ready:
        ready.extend(simulation.advance(ready.popleft()))
    for exchange, ranks in simulation.waiting.items():
        raise UsageError(
            f"rank {ranks[0]} waits for {step.exchanges[exchange].what}, which another rank of its group starts only after it has waited "
            "for this rank: the trace's order of starts and waits cannot be replayed"
        )
    return max([simulation.end, *simulation.clock.values()])
