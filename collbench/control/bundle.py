"""What the ranks of a node say in a step, put together to messages of a bounded size; and what a rank is told that comes twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from collbench.control.message import MOST_RAW_PARTS

LARGE_BYTES = 64 << 10  # of arrays: more is offered before it is sent
BUNDLE_BYTES = 4 << 20  # of arrays in one message, unless a single rank has more
Entry = tuple[int, Any, Sequence[bytes | memoryview]]  # rank, value, raw arrays


def size_of(raw: Sequence[bytes | memoryview]) -> int:
    """Bytes of these arrays."""
    return sum(memoryview(part).nbytes for part in raw)


def bundles(said: Sequence[Entry]) -> Iterator[list[Entry]]:
    """The entries in their order, as many together as one message should hold."""
    bundle, size, parts = list[Entry](), 0, 0
    for entry in said:
        if bundle and (size + size_of(entry[2]) > BUNDLE_BYTES or parts + len(entry[2]) > MOST_RAW_PARTS):
            yield bundle
            bundle, size, parts = [], 0, 0
        bundle.append(entry)
        size, parts = size + size_of(entry[2]), parts + len(entry[2])
    yield bundle


def started_again(rank: int, about: Any) -> str:
    """What a process is told that says it is a rank which has joined already; `about`: what it says of itself."""
    who = f"{about.get('host')}, pid {about.get('pid')}" if isinstance(about, dict) else "another process"
    return (
        f"rank {rank} was started again ({who}), by a launcher that restarts ranks or by a second launch that looks the same: "
        "a run cannot go on with another process; start all ranks again, a second launch with a MASTER_PORT of its own"
    )
