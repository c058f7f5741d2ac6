"""Two ranks in one process, for tests of the socket backend: worlds that agree with one another, and links between them."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from msgspec.structs import replace

from collbench.backends.backend import Group, Settings
from collbench.backends.socket import ConnectionMaker, Connections
from collbench.control.members import Member
from collbench.operations.case import Case

T = TypeVar("T")
PATIENCE_S = 20.5


class Rank:
    """What `Links` needs of a world: rank, members, agree. `said` has what each rank sent last."""

    def __init__(self, rank: int, members: tuple[Member, ...], said: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.me, self.members, self.size = rank, members[rank], members, len(members)
        self.said, self._barrier = said, barrier

    def allgather(self, value: Any, what: str) -> list[Any]:
        self.said[self.rank] = value
        self._barrier.wait(PATIENCE_S)
        return list(self.said)


def ranks(n: int = 2, addresses: tuple[str, ...] = ()) -> list[Any]:
    members = tuple(Member(rank, f"node{rank}", 0, 100 + rank, (0,), *addresses[rank : rank + 1]) for rank in range(n))
    said, barrier = [None] * n, threading.Barrier(n)
    return [Rank(rank, members, said, barrier) for rank in range(n)]


def at_once(*calls: Callable[[], T]) -> list[T | Exception]:
    """What each call returns or raises, all run at the same time."""

    def safely(call: Callable[[], T]) -> T | Exception:
        try:
            return call()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(safely, calls))


@contextmanager
def meeting(n: int = 2, timeout_s: float = PATIENCE_S) -> Iterator[list[ConnectionMaker]]:
    """Return the links of n ranks that have exchanged their addresses."""
    worlds = ranks(n)
    made = at_once(*(lambda world=world: ConnectionMaker(world, timeout_s) for world in worlds))
    assert all(isinstance(one, ConnectionMaker) for one in made), made
    yield made
    for one in made:
        one.close()


@contextmanager
def linked(streams: int = 1, deadline_s: float | None = None) -> Iterator[tuple[Connections, Connections]]:
    """Both ends of a link; `deadline_s`, below 1, instead of the usual one."""
    with meeting() as (first, second):
        ends = at_once(lambda: first.connect(1, streams), lambda: second.connect(0, streams))
        assert all(isinstance(end, Connections) for end in ends), ends
        yield tuple(_hurried(end, deadline_s) if deadline_s else end for end in ends)
        for end in ends:
            end.close()


def _hurried(link: Connections, deadline_s: float) -> Connections:
    for each in link.sockets:
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            each.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(deadline_s * 1e6)))
    return replace(link, deadline_s=deadline_s)


def opened(kind: Callable[[], Any], timeout_s: float = PATIENCE_S) -> list[Any]:
    backends, settings = [kind(), kind()], Settings(timeout_s=timeout_s)
    assert at_once(*(lambda b=b, w=w: b.open(w, settings) for b, w in zip(backends, ranks(), strict=True))) == [None, None]
    return backends


def paired(backends: list[Any], case: Case) -> list[Any]:
    whole = [Group((0, 1), (rank,)) for rank in (0, 1)]
    return at_once(*(lambda b=b, w=w: b.pair(w, (0, 1), case) for b, w in zip(backends, whole, strict=True)))
