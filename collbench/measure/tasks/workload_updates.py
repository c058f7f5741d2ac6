"""What servers and workers of asynchronous training do: a server adds each gradient as it arrives, and answers with its model.

Gradients are small whole numbers that tell worker, server and element apart, the same in every round, so that the model must in the end
be the sum of so many of each, exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collbench.errors import RunFailed
from collbench.measure.tasks.workload_messages import Talk, received, sent
from collbench.measure.tasks.workload_roles import ROTATION_BYTES, Roles
from collbench.operations.data import POISON, Mismatch
from collbench.operations.dtypes import DType

_LARGEST = 7  # of a gradient's elements: even 8-bit floats hold it
PERIOD = _LARGEST**2
_CHUNK = PERIOD << 16


def gradient(worker: int, server: int) -> NDArray[np.int64]:
    """One period of what a worker pushes to a server: from 1 to 7, other ones for each of seven workers in a row."""
    index = np.arange(PERIOD)
    return 1 + (index + index // _LARGEST + 3 * worker + 5 * server) % _LARGEST


def exact_updates(dtype: DType) -> int:
    """How many updates a type adds up exactly."""
    return dtype.exact // _LARGEST


class Shard:
    """A server's part of the model, from zero on, and who has done what to it.

    staleness   by worker, how often so many updates of others had come between what it pulled and its next update
    applied     updates by worker
    """

    def __init__(self, roles: Roles, server: int) -> None:
        self.roles, self.server = roles, server
        self.model = np.zeros(roles.elements(server), roles.sums.numpy)
        self.staleness: dict[int, Counter[int]] = {worker: Counter() for worker in roles.workers}
        self.applied: Counter[int] = Counter()
        self._version = 0
        self._seen: dict[int, int] = {}

    def serve(self, worker: int) -> Talk:
        """Takes updates and answers with the model, until the worker says that it was the last. Raises RunFailed for one out of turn."""
        dtype, pieces = self.roles.dtype.numpy, (self.roles.pushes[self.server], self.roles.pulls[self.server])
        inbox, outbox = (np.zeros(max(count for _, count in each), dtype) for each in pieces)
        number = np.zeros(1, np.int64)
        for turn in count(1):
            yield received(number)
            if number[0] == 0:
                return
            if number[0] != turn:
                here = self.roles.servers[self.server]
                raise RunFailed(f"the server on rank {here} got update {number[0]} of rank {worker} when update {turn} was due")
            for at, many in pieces[0]:
                yield received(inbox[:many])
                self.add(at, inbox[:many])
            self._note(worker)
            for at, many in pieces[1]:
                outbox[:many] = self.model[at : at + many]
                yield sent(outbox[:many])

    def add(self, at: int, part: NDArray[Any]) -> None:
        """A piece of an update, as soon as it is there."""
        target = self.model[at : at + len(part)]
        np.add(target, part.astype(target.dtype, copy=False), out=target)

    def _note(self, worker: int) -> None:
        """An update is complete; what the worker is then sent has all updates up to now, at least."""
        if worker in self._seen:
            self.staleness[worker][self._version - self._seen[worker]] += 1
        self.applied[worker] += 1
        self._version += 1
        self._seen[worker] = self._version

    def tell(self) -> Talk:
        """The model once more, for a worker that compares it."""
        outbox = np.zeros(self.roles.largest, self.roles.dtype.numpy)
        for at, many in self.roles.pulls[self.server]:
            outbox[:many] = self.model[at : at + many]
            yield sent(outbox[:many])


class Pupil:
    """A worker: what it pushes to each server, and room for what it pulls. It sends from memory that is larger than the caches."""

    def __init__(self, roles: Roles, rank: int) -> None:
        self.roles, self.worker = roles, roles.workers.index(rank)
        self._number = np.zeros(1, np.int64)
        self._gradients = [self._filled(server) for server in range(len(roles.servers))]
        self._pulled = [np.zeros_like(each) for each in self._gradients]

    def _filled(self, server: int) -> NDArray[Any]:
        whole = self.roles.elements(server)
        room = min(whole, max(self.roles.largest, ROTATION_BYTES // self.roles.dtype.size)) + PERIOD
        return np.resize(gradient(self.worker, server).astype(self.roles.dtype.numpy), room)

    def round(self, number: int) -> dict[int, Talk]:
        """The update of that number to every server, and its answer."""
        self._number[0] = number
        return {rank: self._exchange(server) for server, rank in enumerate(self.roles.servers)}

    def farewell(self) -> dict[int, Talk]:
        """That there is no more."""
        self._number[0] = 0
        return {rank: self._end() for rank in self.roles.servers}

    def _end(self) -> Talk:
        yield sent(self._number)

    def _exchange(self, server: int) -> Talk:
        yield sent(self._number)
        for at, many in self.roles.pushes[server]:
            yield sent(_window(self._gradients[server], at, many))
        for at, many in self.roles.pulls[server]:
            yield received(_window(self._pulled[server], at, many))

    def compare(self, updates: Sequence[int], rank: int, found: list[Mismatch]) -> dict[int, Talk]:
        """The model of every server once more, against so many updates of each worker; what is wrong with it is added to `found`."""
        return {each: self._compare(server, updates, rank, found) for server, each in enumerate(self.roles.servers)}

    def _compare(self, server: int, updates: Sequence[int], rank: int, found: list[Mismatch]) -> Talk:
        right, dtype = total(server, updates), self.roles.dtype
        for at, many in self.roles.pulls[server]:
            part = _window(self._pulled[server], at, many)
            part.view(np.uint8)[:] = POISON
            yield received(part)
            found += differences(part, np.roll(right, -(at % PERIOD)).astype(dtype.numpy), rank, "the model that it pulled", at)


def _window(memory: NDArray[Any], at: int, many: int) -> NDArray[Any]:
    """Room for `many` elements that begins where element `at` of the pattern does."""
    room = len(memory) - many + 1
    start = at % room
    start -= (start - at) % PERIOD
    return memory[start + (PERIOD if start < 0 else 0) :][:many]


def total(server: int, updates: Sequence[int]) -> NDArray[np.int64]:
    """One period of what a server's model must be after so many updates of each worker."""
    return sum((many * gradient(worker, server) for worker, many in enumerate(updates)), start=np.zeros(PERIOD, np.int64))


def differences(got: NDArray[Any], right: NDArray[Any], rank: int, what: str, at: int = 0) -> list[Mismatch]:
    """Where elements are not the repetition of a period `right`: nothing, or one mismatch."""
    wrong, first = 0, None
    for start in range(0, len(got), _CHUNK):
        part = got[start : start + _CHUNK]
        bad = np.flatnonzero(part != np.resize(right, len(part)))
        if bad.size and first is None:
            first = start + int(bad[0])
        wrong += bad.size
    if first is None:
        return []
    return [Mismatch(rank, wrong, at + first, str(right[first % PERIOD]), str(got[first]), what)]


def lost_updates(shard: Shard, pushed: Mapping[int, int], rank: int) -> list[Mismatch]:
    """Workers whose updates were not applied as often as they pushed them; the index is the worker's rank."""
    return [
        Mismatch(rank, abs(many - shard.applied[worker]), worker, str(many), str(shard.applied[worker]), "updates of that rank applied")
        for worker, many in pushed.items()
        if many != shard.applied[worker]
    ]
