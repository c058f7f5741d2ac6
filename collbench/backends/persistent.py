"""Persistent MPI calls: requests that are made once for each buffer slot; an iteration starts them and waits for them.

MPI 4.0 has them for collectives (MPI_Allreduce_init), Open MPI 4 with the prefix MPIX_, and every MPI for messages (MPI_Send_init).
An operation's steps stay as they are: each blocking call becomes the start of its request and a wait, and the messages that were posted
together become one MPI_Startall and one MPI_Waitall, also the message that confirms a window. As in OSU's persistent benchmarks, the time
has neither the making of the requests nor their release.

Requests of collectives must be made in the same order on all ranks, and making them may wait for the other ranks.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, SupportsInt

from collbench.backends.backend import Group
from collbench.backends.host import AnyBuffers
from collbench.backends.mpi import MpiBinding
from collbench.errors import RunFailed
from collbench.operations.operation import Steps
from collbench.operations.program import Call, NativeCall

# By blocking or non-blocking function of a message, the one that makes its request, and how many leading arguments both have.
_MESSAGES = {"MPI_Send": "MPI_Send_init", "MPI_Isend": "MPI_Send_init", "MPI_Recv": "MPI_Recv_init", "MPI_Irecv": "MPI_Recv_init"}
_OF_A_MESSAGE = 6
# Arguments of MPI_Sendrecv: the two messages, then the communicator.
_SENT = slice(0, 5)
_RECEIVED = slice(5, 10)
_COMM = 10


class NoPersistentCall(Exception):
    """The library does not have the function with this name, which makes a persistent request."""


class StartedCall(NativeCall, frozen=True):
    """The start of persistent requests; `wait` must follow it. Posted messages have no calls before their common start."""

    wait: NativeCall | None = None


class PersistentBinding(MpiBinding):
    """The binding for the operations' "mpi" steps with persistent requests. Its calls are `StartedCall`s; None for a posted message."""

    def __init__(self, mpi: Any, library: ctypes.CDLL, buffers: AnyBuffers, group: Group, slot: int) -> None:
        super().__init__(mpi, library, buffers, group, slot)
        self._made: list[int] = []
        self._posted_messages: list[tuple[str, tuple[SupportsInt, ...]]] = []

    def call(self, name: str, *words: SupportsInt) -> NativeCall:
        """Make the request of a call, and return its start. Raises NoPersistentCall, RunFailed."""
        if name == "MPI_Sendrecv":
            comm = words[_COMM]
            return self._requests([("MPI_Recv_init", (*words[_RECEIVED], comm)), ("MPI_Send_init", (*words[_SENT], comm))])
        if name in _MESSAGES:
            return self._requests([(_MESSAGES[name], words[:_OF_A_MESSAGE])])
        return self._requests([(self._collective(name), (*words, self._mpi._handleof(self._mpi.INFO_NULL)))])

    def post(self, name: str, *words: SupportsInt) -> None:  # type: ignore[override]
        """Add a message to those that the next `waitall` starts."""
        if name not in _MESSAGES:
            raise NoPersistentCall(f"{name}_init")
        self._posted_messages.append((_MESSAGES[name], words[:_OF_A_MESSAGE]))

    def waitall(self) -> NativeCall:
        """Make the requests of all posted messages, and return their common start. Raises RunFailed."""
        messages = self._posted_messages
        self._posted_messages = []
        return self._requests(messages)

    def free(self) -> None:
        """Free the requests, which must be complete."""
        requests = self._made
        self._made = []
        if not self._mpi.Is_finalized():
            for request in requests:
                self._run("MPI_Request_free", (request,))

    def _collective(self, name: str) -> str:
        """Return the function that makes the request of a collective: MPI_Allreduce_init, else MPIX_Allreduce_init."""
        function = f"{name}_init"
        for candidate in (function, function.replace("MPI_", "MPIX_", 1)):
            if self.has(candidate):
                return candidate
        raise NoPersistentCall(function)

    def _requests(self, functions: list[tuple[str, tuple[SupportsInt, ...]]]) -> NativeCall:
        """Make a request by each function with its arguments, and return the call that starts them."""
        n = len(functions)
        first = self.room(max(n, 1) * self._request_bytes)
        for place, (function, words) in enumerate(functions):
            request = first + place * self._request_bytes
            self._run(f"{function}_c" if self._large and self.has(f"{function}_c") else function, (*words, request))
            self._made.append(request)
        if n == 1:
            wait = NativeCall("MPI_Wait", self.pointer("MPI_Wait"), (first, self.status))
            return StartedCall("MPI_Start", self.pointer("MPI_Start"), (first,), wait)
        wait = NativeCall("MPI_Waitall", self.pointer("MPI_Waitall"), (n, first, self.room(max(n, 1) * self.status_bytes)))
        return StartedCall("MPI_Startall", self.pointer("MPI_Startall"), (n, first), wait)

    def _run(self, function: str, words: tuple[SupportsInt, ...]) -> None:
        """Call a function now. Raises RunFailed with the library's text for its error code."""
        code = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * len(words))(self.pointer(function))(*map(int, words))
        if code:
            raise RunFailed(f"{function} failed: {self._mpi.Get_error_string(code)}")


def persistent_calls(steps: Steps, binding: PersistentBinding) -> Iterator[Call]:
    """Yield the calls of one iteration: the start of each request and the wait for it. Raises NoPersistentCall, RunFailed."""
    for call in steps(binding):
        if isinstance(call, StartedCall) and call.wait:
            yield from (NativeCall(call.name, call.pointer, call.args), call.wait)
        elif call is not None:
            yield call
