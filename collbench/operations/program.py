"""Programs: what one iteration does on this rank, as plain calls that a timed loop can run without thinking."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

MAX_WORDS = 12


@dataclass(frozen=True)
class NativeCall:
    """A C function by address with up to 12 word-sized arguments (no floats); it returns 0 for success."""

    name: str
    pointer: int
    words: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.words) > MAX_WORDS:
            raise ValueError(f"{self.name} takes {len(self.words)} words; the native loop passes at most {MAX_WORDS}")


@dataclass(frozen=True)
class PythonCall:
    """A Python function without arguments; it raises on failure."""

    name: str
    function: Callable[[], object]


Call = NativeCall | PythonCall


@dataclass(frozen=True)
class Program:
    """Per buffer slot the calls of one iteration.

    `keep` holds what the calls point into alive; `explain` puts a native call's error code into the library's words.
    iterations   how many iterations one run of a slot holds (graphs hold several)
    once         a program of a single iteration, for verification, where a slot holds several
    """

    slots: tuple[tuple[Call, ...], ...]
    keep: object = None
    explain: Callable[[int], str] = lambda code: f"error code {code}"
    iterations: int = 1
    once: Program | None = None

    @property
    def native(self) -> bool:
        """Whether every call can run in the C loop."""
        return all(isinstance(call, NativeCall) for slot in self.slots for call in slot)

    def calls(self) -> Iterator[str]:
        """Names of the calls of one iteration, in order."""
        return (call.name for call in self.slots[0]) if self.slots else iter(())


def joined(programs: list[Program]) -> Program:
    """One program that runs the given ones after another in each iteration (one process driving several groups)."""
    if len(programs) == 1:
        return programs[0]
    columns = zip_longest(*(program.slots for program in programs), fillvalue=())
    slots = tuple(tuple(call for slot in column for call in slot) for column in columns)
    once = joined([program.once or program for program in programs]) if any(program.once for program in programs) else None
    return Program(slots or ((),), keep=programs, explain=programs[0].explain, iterations=programs[0].iterations, once=once)
