"""The ends of a control plane within this process: rank 0's and the others', each with its I/O thread. Cheaper than processes."""

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from collbench.control.client import Client
from collbench.control.diagnosis import RankState
from collbench.control.members import Member
from collbench.control.security import Secret, secret_of
from collbench.control.server import Server
from collbench.control.watchdog import EndProcess
from collbench.launch.info import LaunchInfo

DEADLINE_S = 20.0


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def no_end(sentence: str, code: int) -> None:
    raise AssertionError(f"the I/O thread had to end the process ({code}): {sentence}")


@dataclass
class Here:
    """A launch of `n` ranks on loopback, each a node of its own, or `each` a node."""

    n: int = 2
    each: int = 1
    meeting: str = "tcp://127.0.0.1"
    port: int = field(default_factory=free_port)
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    stack: ExitStack = field(default_factory=ExitStack)
    left: list[Server | Client] = field(default_factory=list)

    def info(self, rank: int, **other: Any) -> LaunchInfo:
        node, local_rank = divmod(rank, self.each)
        actual = {"launcher": "local", "rank": rank, "ranks": self.n, "local_rank": local_rank, "local_ranks": self.each}
        where = {"meeting": self.meeting, "token": self.token, "port": self.port, "node": str(node), "secret": "token"}
        return LaunchInfo(**{**actual, **where, **other})

    @property
    def secret(self) -> Secret:
        return secret_of(self.info(0), {})

    def hub(self) -> Server:
        end = Server(self.info(0), self.secret, lambda: RankState(0), EndProcess(no_end), DEADLINE_S)
        self.stack.callback(self.close, end)
        return end

    def spoke(self, rank: int, secret: Secret | None = None, end_process: Callable[[str, int], None] = no_end, **other: Any) -> Client:
        end = Client(self.info(rank, **other), secret or self.secret, lambda: RankState(rank), EndProcess(end_process))
        self.stack.callback(self.close, end)
        return end

    def close(self, end: Server | Client) -> None:
        if end not in self.left:
            self.left.append(end)
            end.close()

    def join(self, hub: Server, *spokes: Client) -> dict[int, Member]:
        """Join all ranks; returns the messages that rank 0 received."""
        threads = [threading.Thread(target=one.join, args=(about(rank), DEADLINE_S)) for rank, one in enumerate(spokes, 1)]
        for thread in threads:
            thread.start()
        said = hub.admit(DEADLINE_S)
        for thread in threads:
            thread.join()
        hub.expect([Member(rank, "h", rank, 7, ()) for rank in range(self.n)], {})
        return said


def about(rank: int) -> Member:
    return Member(rank, f"node{rank}", 0, 4242 + rank, ())


def collected(hub: Server, step: int) -> dict[int, tuple[Any, list[bytes]]]:
    """Return every rank's value of a step, and its arrays, by rank."""
    found: dict[int, tuple[Any, list[bytes]]] = {}
    hub.collect(step, "asking", 10, lambda rank, value, arrays: found.update({rank: (value, [bytes(array) for array in arrays])}))
    return found


@contextmanager
def launch(n: int = 2, each: int = 1) -> Iterator[Here]:
    here = Here(n, each)
    with here.stack:
        yield here
