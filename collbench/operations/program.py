"""Programs: the calls of one iteration on this rank, prepared so that the timed loop only makes them.

A backend's `bind` returns a `Program`. The C loop runs it if all of its calls are `NativeCall`s; else the Python loop does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

import msgspec
from msgspec.structs import replace

MAX_ARGS = 12  # that the C loop passes to a function; native/loop.c has the same number


class NativeCall(msgspec.Struct, frozen=True):
    """A call of a C function, which returns 0 for success.

    name      of the function, for errors and for `Program.calls`
    pointer   its address
    args      at most 12 word-sized arguments: integers, addresses and handles, but no floats. Raises ValueError for more
    """

    name: str
    pointer: int
    args: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.args) > MAX_ARGS:
            raise ValueError(f"{self.name} has {len(self.args)} arguments; the C loop passes at most {MAX_ARGS}")


class PythonCall(msgspec.Struct, frozen=True):
    """A call of a Python function without arguments, which raises an exception on failure. Its result is ignored."""

    name: str
    function: Callable[[], object]


Call = NativeCall | PythonCall


class Program(msgspec.Struct, frozen=True):
    """The calls of one iteration, for each buffer slot; iterations use the slots in turn.

    slots        by slot the calls, in order; all slots have the same calls on different buffers
    keep         objects that must live as long as the program, such as buffers and arrays that the calls point to
    explain      returns the library's text for the error code of a native call
    iterations   how many iterations one run of a slot makes: above 1 for CUDA graphs, which contain several
    once         a program with one iteration per slot, used for verification where `iterations` is above 1; else None
    free         frees what the library holds for the calls, such as persistent requests. Called once, after the last iteration
    """

    slots: tuple[tuple[Call, ...], ...]
    keep: object = None
    explain: Callable[[int], str] = lambda code: f"error code {code}"
    iterations: int = 1
    once: Program | None = None
    free: Callable[[], None] = lambda: None

    @property
    def native(self) -> bool:
        """Whether all calls are native, so that the C loop can run them."""
        return all(isinstance(call, NativeCall) for slot in self.slots for call in slot)

    def calls(self) -> Iterator[str]:
        """Return the names of the calls of one iteration, in order."""
        return (call.name for call in self.slots[0]) if self.slots else iter(())


class NonBlocking(msgspec.Struct, frozen=True):
    """The calls of one iteration in two programs: `start` begins it and does not wait, `wait` returns when its data is complete.

    Both have the same buffer slots. A slot is started again only after its wait.
    """

    start: Program
    wait: Program

    def in_one(self) -> Program:
        """Return a program that starts the operation and waits for it at once."""
        slots = zip(self.start.slots, self.wait.slots, strict=True)
        return replace(self.start, slots=tuple((*start, *wait) for start, wait in slots), keep=(self.start.keep, self.wait.keep))


def joined(programs: list[Program]) -> Program:
    """Return a program that runs all of these in each iteration, for a process that drives ranks of several groups."""
    if len(programs) == 1:
        return programs[0]
    columns = zip_longest(*(program.slots for program in programs), fillvalue=())
    slots = tuple(tuple(call for slot in column for call in slot) for column in columns)
    once = joined([program.once or program for program in programs]) if any(program.once for program in programs) else None

    def free() -> None:
        for program in programs:
            program.free()

    return Program(slots or ((),), programs, programs[0].explain, programs[0].iterations, once, free)
