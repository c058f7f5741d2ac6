"""The loop that a stack's file runs: batches of calls back to back, two clock readings per batch, nothing else."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """One rank of a minimal loop, as `stack_loops` starts it.

    rank, ranks   this one and how many
    addresses     "127.0.0.1:PORT" of each rank, free when it was started: for the stack's listening sockets
    n_bytes       of the float32 buffer; warmup, batches, batch: calls before, batches timed, calls per batch
    """

    rank: int
    ranks: int
    addresses: tuple[str, ...]
    n_bytes: int
    warmup: int
    batches: int
    batch: int

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Place:
        """From RANK, WORLD_SIZE, STACK_ADDRESSES (by commas) and STACK_LOAD (the other numbers, by commas)."""
        load = (int(number) for number in env["STACK_LOAD"].split(","))
        return cls(int(env["RANK"]), int(env["WORLD_SIZE"]), tuple(env["STACK_ADDRESSES"].split(",")), *load)

    @property
    def count(self) -> int:
        """Elements of the buffer."""
        return self.n_bytes // 4


Call = Callable[[], object]  # the stack's operation, once, done when it returns
Opened = tuple[Call, Callable[[], object]]


def operation_of(stack: str) -> str:
    """Return the operation of a stack: for stacks that only have messages a ping-pong, timed as the whole round trip."""
    return "p2p_latency" if stack == "zmq" else "allreduce"


def main(open_stack: Callable[[Place], Opened]) -> None:
    """Opens the stack: (its call, what closes it). Rank 0 prints seconds per call, per batch."""
    place = Place.from_environment(os.environ)
    call, close = open_stack(place)
    for _ in range(place.warmup):
        call()
    samples = [seconds_of(call, place.batch) for _ in range(place.batches)]
    close()
    if place.rank == 0:
        print(json.dumps({"p50_s": statistics.median(samples), "samples_s": samples}), flush=True)


def seconds_of(call: Call, n: int) -> float:
    """Seconds per call of n calls back to back."""
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n
