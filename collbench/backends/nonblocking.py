"""Start an operation, and wait for it later: the steps of an operation divided into the calls that begin it and one that waits.

Cases with a call form (`Case.call`) use the same calls: both parts at once, or persistent requests.

The steps are those of the blocking program. A backend's binding that has `start`, `begin` and `finish` makes them non-blocking. It
works for operations that are one call of the library, or messages that are all posted before the only wait. Others (hypercube,
ping-pong) wait in between, and cannot be started.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from collbench.native.library import address, library
from collbench.operations.operation import Operation, Steps
from collbench.operations.program import Call, NativeCall, NonBlocking, Program, PythonCall
from collbench.operations.unsupported import PersistentUnsupported, StartUnsupported
from collbench.reason import Fact

if TYPE_CHECKING:
    from collbench.backends.backend import Backend, Group
    from collbench.backends.host import AnyBuffers
    from collbench.operations.case import Case


class _NotStartable(Exception):
    """The steps wait before their end, or use a function without a non-blocking variant."""


class _Starting:
    """A binding with calls that do not wait: `call` and messages start, and `waitall` only begins what was posted."""

    def __init__(self, binding: Any) -> None:
        self._binding = binding
        self._has_call = False
        self._has_messages = False
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._binding, name)

    def call(self, name: str, /, *args: Any, **named: Any) -> Call:
        return self._only(self._binding.start(name, *args, **named))

    def send_to(self, rank: int, part: Any, count: int) -> Call:
        return self._only(self._binding.post_send(rank, part, count))

    def receive_from(self, rank: int, part: Any, count: int) -> Call:
        return self._only(self._binding.post_receive(rank, part, count))

    def post_send(self, rank: int, part: Any, count: int) -> Call:
        return self._post(self._binding.post_send(rank, part, count))

    def post_receive(self, rank: int, part: Any, count: int) -> Call:
        return self._post(self._binding.post_receive(rank, part, count))

    def signal_to(self, rank: int) -> Call:
        raise _NotStartable

    signal_from = signal_to

    def waitall(self) -> Call | None:
        if self._ended or self._has_call:
            raise _NotStartable
        return self.end()

    def end(self) -> Call | None:
        """Return the call that begins what was posted, unless `waitall` has returned it."""
        if self._ended:
            return None
        self._ended = True
        begin: Call | None = self._binding.begin()
        return begin

    def _only(self, call: Call | None) -> Call:
        """Return a call that must be the only one: libraries may run several in any order."""
        if call is None or self._ended or self._has_messages or self._has_call:
            raise _NotStartable
        self._has_call = True
        return call

    def _post(self, call: Call) -> Call:
        if self._ended or self._has_call:
            raise _NotStartable
        self._has_messages = True
        return call


def divided(steps: Steps, binding: Any) -> tuple[tuple[Call, ...], tuple[Call, ...]] | None:
    """Return (the calls that start, the calls that wait) of one iteration on one slot; None if it cannot be started.

    A rank without calls has none in either. Beside the methods of `operations.operation.Binding`, the binding needs:

    start    like `call`, returns the non-blocking variant of a function; None if the library does not have it
    begin    returns the call that begins the posted messages; None if posting begins them
    finish   returns a call that waits for everything started and posted
    """
    if not all(hasattr(binding, name) for name in ("start", "begin", "finish")):
        return None
    starting = _Starting(binding)
    try:
        calls = [call for call in steps(starting) if call is not None]
        last = starting.end() if calls else None
    except _NotStartable:
        return None
    start = (*calls, last) if last else tuple(calls)
    return start, (binding.finish(),) if start else ()


def bind_nonblocking(backend: Backend, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> NonBlocking | Fact:
    """Return an operation's programs to start it and to wait for it, or why the backend has none."""
    from collbench.backends.backend import NonBlockingBackend

    if not isinstance(backend, NonBlockingBackend):
        return StartUnsupported(backend.name, operation.name)
    return backend.bind_nonblocking(operation, case, group, buffers)


def bind_called(backend: Backend, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program | Fact:
    """Return the program of one iteration of a case with a call form ("nonblocking" or "persistent"), or why the backend does not have it.

    Of a persistent call, all ranks of the group must make this call, after all of them have buffers.
    """
    if case.call == "nonblocking":
        programs = bind_nonblocking(backend, operation, case, group, buffers)
        return programs if isinstance(programs, Fact) else programs.in_one()
    from collbench.backends.backend import PersistentBackend

    if not isinstance(backend, PersistentBackend):
        return PersistentUnsupported(backend.name, operation.name)
    return backend.bind_persistent(operation, case, group, buffers)


# Computing of a rank on its core.


def busy(seconds: float) -> Call:
    """Return a call that keeps this core busy for so long. In C it holds no lock of Python, so that threads of a library can run."""
    nanoseconds = max(0, round(seconds * 1e9))
    built = library()
    if built is not None and hasattr(built, "collbench_compute"):
        return NativeCall("compute", address("collbench_compute"), (nanoseconds,))

    def spin() -> None:
        until = time.monotonic_ns() + nanoseconds
        while time.monotonic_ns() < until:
            pass

    return PythonCall("compute", spin)
