"""Bad input of a hunt."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from collbench.plugins.hunt import hunt_strategy
from tests.messages import Message


def hunting(method: str, **about: Any) -> Message:
    arguments = Namespace(method=method, rounds=None, budget=600.0, max_time=0.5, seed=None, no_growing=False, no_isolation=False,
                          cover_links=Path("links"))  # fmt: skip
    return lambda: hunt_strategy.options_of(arguments, {"no_groups": None, "ranks_per_place": 1, "nics": [], **about})


def no_drain(*flags: str, virtual: bool = False, slowed: tuple[str, ...] = ()) -> Message:
    return lambda: hunt_strategy._no_drain(Namespace(slowed=slowed), {"virtual": virtual, "backend": "simulated"}, flags)


MESSAGES: dict[str, Message] = {
    "hunt, groups without all-reduce": hunting("groups", no_groups="socket does not support allreduce"),
    "hunt, groups beside links": hunting("groups"),
    "hunt, recommendation not written": lambda: hunt_strategy._stored(Path("/nowhere/run"), {}),
    "hunt, simulated": no_drain(virtual=True),
    "hunt, slowed": no_drain(slowed=("by=10%",)),
    "hunt, oversubscribed": no_drain("oversubscribed"),
    "hunt, shared GPU": no_drain("shared_gpu"),
}
