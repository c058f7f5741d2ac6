"""Ranks that execute programs of collectives and messages as PyTorch and NCCL do, and the dumps that their Flight Recorders would write.

A program is a list of instructions per rank. The host of a rank enqueues operations, and goes on; it stops at `Sync` until its
compute stream has ended, and at `Stop` for good. An operation starts when what is before it on its stream has completed, and what its
compute stream had waited for when it was called. Collectives and batches of a group share a stream; single messages of a pair have one.

A collective completes when all members have started it with the same arguments, a message when both sides have started it with equal
sizes: there are no eager messages. Broadcast and reduce pass data along the ring of the group, from or to the root that each rank
has given.
`run` executes until nothing changes. Nothing here comes from `collbench`: what hangs a job follows from the execution alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SECOND = 1_000_000_000
_BEGAN = 1_795_000_000 * _SECOND
_ROUND = _SECOND // 1000


@dataclass(frozen=True)
class Collective:
    """A collective; root: a rank of the job. never: it moves nothing, also if all have started it. waits: the program waits for it."""

    kind: str
    group: str
    size: int
    root: int = -1
    dtype: str = "Float"
    never: bool = False
    waits: bool = True


@dataclass(frozen=True)
class Message:
    """A send or a receive; peer: a rank of the job."""

    kind: str
    group: str
    size: int
    peer: int


@dataclass(frozen=True)
class Batch:
    """Sends and receives of one `batch_isend_irecv`."""

    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Sync:
    """The host waits until its compute stream has ended, as `loss.item()` does."""


@dataclass(frozen=True)
class Stop:
    """The host does not go on: an exception, an endless loop."""


@dataclass(frozen=True)
class StuckKernel:
    """A kernel that does not end on the compute stream."""


Instruction = Collective | Message | Batch | Sync | Stop | StuckKernel
Program = Sequence[Instruction]


@dataclass(eq=False)
class _Launched:
    """An operation that a rank has enqueued. before: those that must complete first; number: its place in its group or pair."""

    rank: int
    call: Collective | Batch | None
    group: str = ""
    number: int = 0
    created: int = 0
    before: tuple[_Launched, ...] = ()
    parts: list[tuple[Message, int]] = field(default_factory=list)  # of a message or batch: each with its number in its pair
    is_single: bool = False
    started: bool = False
    completed: bool = False
    received: bool = False  # of broadcast and reduce: whether the data has arrived


class Execution:
    """A job that is executed. groups: ranks of each."""

    def __init__(self, groups: Mapping[str, Sequence[int]], programs: Mapping[int, Program], seed: int) -> None:
        self.groups, self.programs = groups, programs
        self.random = random.Random(seed)
        self.launched: dict[int, list[_Launched]] = {rank: [] for rank in programs}
        self.at = dict.fromkeys(programs, 0)
        self._tail: dict[int, tuple[_Launched, ...]] = dict.fromkeys(programs, ())
        self._streams: dict[tuple[Any, ...], _Launched] = {}
        self._counts: dict[tuple[Any, ...], int] = {}
        self._collectives: dict[tuple[str, int], dict[int, _Launched]] = {}
        self._messages: dict[tuple[Any, ...], tuple[_Launched, Message]] = {}
        self._round = 0

    def run(self) -> None:
        """Execute until nothing changes."""
        changed = True
        while changed:
            self._round += 1
            changed = False
            for rank in self.random.sample(sorted(self.programs), len(self.programs)):
                for _ in range(self.random.randint(1, 4)):
                    changed |= self._advance(rank)
            while self._progress():
                changed = True

    @property
    def is_finished(self) -> bool:
        """Whether all programs have ended and all operations have completed."""
        ended = all(self.at[rank] == len(program) for rank, program in self.programs.items())
        return ended and all(each.completed for own in self.launched.values() for each in own)

    def _advance(self, rank: int) -> bool:
        """Execute the next instruction of a host; return whether it could."""
        if self.at[rank] == len(self.programs[rank]):
            return False
        call = self.programs[rank][self.at[rank]]
        if isinstance(call, Stop) or (isinstance(call, Sync) and not all(each.completed for each in self._tail[rank])):
            return False
        self.at[rank] += 1
        if isinstance(call, Sync):
            return True
        if isinstance(call, StuckKernel):
            self._tail[rank] = (*self._tail[rank], _Launched(rank, None))
            return True
        self._launch(rank, call)
        return True

    def _launch(self, rank: int, call: Collective | Message | Batch) -> None:
        messages = () if isinstance(call, Collective) else (call,) if isinstance(call, Message) else call.messages
        group = call.group if isinstance(call, Collective) else messages[0].group
        is_single = isinstance(call, Message)
        stream = (rank, group, messages[0].peer) if is_single else (rank, group)
        before = tuple(each for each in (self._streams.get(stream), *self._tail[rank]) if each is not None)
        created = _BEGAN + self._round * _ROUND + self.random.randrange(_ROUND)
        own = _Launched(rank, None if is_single else call, group, created=created, before=before, is_single=is_single)  # type: ignore[arg-type]
        if isinstance(call, Collective):
            own.number = self._next(rank, group)
            self._collectives.setdefault((group, own.number), {})[rank] = own
        for message in messages:
            pair = (rank, message.peer) if message.kind == "send" else (message.peer, rank)
            number = self._next(message.kind, group, is_single, *pair)
            own.parts.append((message, number))
            self._messages[message.kind, group, is_single, *pair, number] = own, message
        self._streams[stream] = own
        self.launched[rank].append(own)
        if not isinstance(call, Collective) or call.waits:
            self._tail[rank] = (own,)

    def _next(self, *key: Any) -> int:
        self._counts[key] = self._counts.get(key, 0) + 1
        return self._counts[key]

    def _progress(self) -> bool:
        """Start and complete what can; return whether there was anything."""
        changed = False
        for own in self._open():
            if not own.started and all(each.completed for each in own.before):
                own.started = changed = True
        for own in self._open():
            if own.started and self._is_complete(own):
                own.completed = changed = True
        return changed

    def _open(self) -> Iterator[_Launched]:
        for own in self.launched.values():
            yield from [each for each in own if not each.completed]

    def _is_complete(self, own: _Launched) -> bool:
        if own.parts:
            return not self.needs(own) and all(self._fits(own, *part) for part in own.parts)
        call = own.call
        assert isinstance(call, Collective)
        if call.kind in ("broadcast", "reduce"):
            return not call.never and self._has_passed(own, call)
        calls = self._collectives[own.group, own.number]
        same = {(each.call.kind, each.call.size, each.call.dtype) for each in calls.values() if isinstance(each.call, Collective)}
        return not call.never and len(same) == 1 and not self.needs(own)

    def _fits(self, own: _Launched, message: Message, number: int) -> bool:
        _, other = self._other_side(own, message, number) or (None, None)
        return other is not None and other.size == message.size

    def _other_side(self, own: _Launched, message: Message, number: int) -> tuple[_Launched, Message] | None:
        is_send = message.kind == "send"
        pair = (own.rank, message.peer) if is_send else (message.peer, own.rank)
        return self._messages.get(("recv" if is_send else "send", own.group, own.is_single, *pair, number))

    def _has_passed(self, own: _Launched, call: Collective) -> bool:
        """Pass the data of a broadcast or reduce along the ring; return whether the rank has received and passed it."""
        ring = self.groups[own.group]
        calls = self._collectives[own.group, own.number]

        def role(rank: int) -> tuple[bool, bool]:
            """Return whether a rank receives, and whether it sends."""
            place = ring.index(rank)
            root = calls[rank].call.root  # type: ignore[union-attr]
            following, preceding = ring[(place + 1) % len(ring)], ring[place - 1]
            if call.kind == "broadcast":
                return rank != root, following != root
            return preceding != root, rank != root

        place = ring.index(own.rank)
        receives, sends = role(own.rank)
        previous, following = calls.get(ring[place - 1]), calls.get(ring[(place + 1) % len(ring)])
        if receives and not own.received and previous is not None and previous.started and role(previous.rank)[1]:
            own.received = previous.received or not role(previous.rank)[0]
        is_passed = not sends or (following is not None and following.started and role(following.rank)[0])
        return (own.received or not receives) and is_passed

    def needs(self, own: _Launched) -> set[int]:
        """Return the ranks that must start an operation before it can complete."""
        if own.parts:
            others = [(message.peer, self._other_side(own, message, number)) for message, number in own.parts]
            return {peer for peer, other in others if other is None or not other[0].started}
        calls = self._collectives[own.group, own.number]
        return {rank for rank in self.groups[own.group] if rank not in calls or not calls[rank].started}

    # What hangs the job.

    def waits(self) -> NDArray[Any]:
        """Return [ranks × ranks] whether a rank waits for another one, directly or over others, in a started operation."""
        ranks = sorted(self.programs)
        closed = np.zeros((len(ranks), len(ranks)), bool)
        for rank, own in self.launched.items():
            for each in own:
                if each.started and not each.completed:
                    for other in self.needs(each):
                        closed[ranks.index(rank), ranks.index(other)] = True
        for via in range(len(ranks)):
            closed |= closed[:, via : via + 1] & closed[via : via + 1, :]
        return closed

    def is_pending(self, rank: int) -> bool:
        """Return whether a rank has called an operation that has not completed."""
        return any(not each.completed for each in self.launched[rank])

    def pending_entries(self, rank: int) -> int:
        """Return how many entries a recorder has from the first operation that has not completed."""
        own = self.launched[rank]
        first = next((at for at, each in enumerate(own) if not each.completed), len(own))
        return sum(len(each.parts) + 1 for each in own[first:])

    # Dumps.

    def dump(self, rank: int, *, timing: bool = True, active: bool = False, most: int = 1 << 20, status: bool = True) -> dict[str, Any]:
        """Return the dump of a rank. timing: with starts; active: only what has not completed; most: entries of the buffer."""
        entries: list[dict[str, Any]] = []
        counts: dict[tuple[str, bool], int] = {}
        progress: dict[str, list[int]] = {}
        own_groups = [name for name, members in self.groups.items() if rank in members]
        offset = random.Random(rank).randrange(2_000_000)  # of the host's clock, in ns
        for own in self.launched[rank]:
            is_message = bool(own.parts)
            counts[own.group, is_message] = counts.get((own.group, is_message), 0) + 1
            number = counts[own.group, is_message]
            state = "completed" if own.completed else "started" if own.started and timing else "scheduled"
            last = progress.setdefault(own.group, [-1, -1])
            last[0] = number
            if own.completed:
                last[1] = max(last[1], number)
            names = [(f"{m.kind} {self._in_group(own, m)}", m.size, m.size, "Float") for m, _ in own.parts]
            if isinstance(own.call, Collective):
                gathered = own.call.size * (len(self.groups[own.group]) if own.call.kind == "all_gather" else 1)
                names = [(own.call.kind, own.call.size, gathered, own.call.dtype)]
            is_batch = isinstance(own.call, Batch)
            for name, size, received, dtype in [*names, *([("coalesced", 0, 0, "Float")] if is_batch else [])]:
                has_state = not is_batch or name == "coalesced"
                shown = state if has_state else "scheduled"
                entries.append({
                    "record_id": len(entries), "pg_id": own_groups.index(own.group), "process_group": [own.group, _described(own.group)],
                    "collective_seq_id": counts.get((own.group, False), 0), "p2p_seq_id": counts.get((own.group, True), 0),
                    "op_id": len(entries), "profiling_name": f"nccl:{name}", "time_created_ns": own.created + offset,
                    "input_sizes": [[size]], "input_dtypes": [dtype], "output_sizes": [[received]], "output_dtypes": [dtype],
                    "state": shown, "retired": shown == "completed", "timeout_ms": 600000, "is_p2p": is_message,
                    "time_discovered_started_ns": own.created + offset + 1 if timing and has_state and own.started else None,
                    "time_discovered_completed_ns": own.created + offset + 2 if shown == "completed" else None,
                })  # fmt: skip
        entries = entries[-most:]
        if active:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        config = {name: {"name": name, "desc": _described(name), "ranks": str(list(self.groups[name]))} for name in own_groups}
        keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        recorded = {
            str(own_groups.index(name)): dict(zip(keys, (called, -1, completed), strict=True))
            for name, (called, completed) in progress.items()
        }
        return {"version": "2.10", "pg_config": config, "pg_status": recorded if status else {}, "entries": entries}

    def dump_of_gloo(self, rank: int) -> dict[str, Any]:
        """Return the dump of a rank as with Gloo: without messages, members, starts and ends."""
        whole = self.dump(rank, status=False)
        entries = [entry for entry in whole["entries"] if not entry["is_p2p"]]
        for entry in entries:
            entry["profiling_name"] = entry["profiling_name"].replace("nccl:", "gloo:")
            entry["retired"] = entry["state"] == "completed"
            entry["state"] = "scheduled"
            entry["time_discovered_started_ns"] = entry["time_discovered_completed_ns"] = None
        return {**whole, "pg_config": {}, "entries": entries}

    def _in_group(self, own: _Launched, message: Message) -> str:
        members = self.groups[own.group]
        rank, peer = members.index(own.rank), members.index(message.peer)
        return f"{rank}->{peer}" if message.kind == "send" else f"{rank}<-{peer}"


def _described(group: str) -> str:
    return "default_pg" if group == "0" else f"group {group}"
