"""Bad input of a hunt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from collbench.backends.slowing import parse_slowing
from collbench.measuring.request import Budget, Request
from collbench.operations.sweep import Sweep
from collbench.plugins.hunt import progress
from collbench.plugins.hunt.places import HuntRequest
from tests.helpers import Call, said

LAUNCH = Request("hunt", Sweep((), None, ()), ("simulated",), budget=Budget(0.5))


def hunting(method: str, **about: Any) -> Call:
    request = HuntRequest(LAUNCH, method=method, cover_links=Path("links"))
    return lambda: progress.options_of(request, {"no_groups": None, "ranks_per_place": 1, "nics": [], **about})


def no_drain(*flags: str, virtual: bool = False, slowed: tuple[str, ...] = ()) -> Call:
    return lambda: progress._no_drain(
        HuntRequest(replace(LAUNCH, slowed=parse_slowing(slowed))), {"virtual": virtual, "backend": "simulated"}, flags
    )


WORDS: dict[str, tuple[Call, str]] = {
    "hunt, groups without all-reduce": (hunting("groups", no_groups="socket does not support allreduce"),
        "--method groups needs all-reduce, but socket does not support allreduce: choose another --backend, or --method pairs"),
    "hunt, groups beside links": (hunting("groups"), "--cover-links needs pairs, which --method groups does not measure: omit one of them"),
    "hunt, recommendation not written": (lambda: progress._stored(Path("/nowhere/run"), {}),
        "/nowhere/run: cannot write recommendation.json (No such file or directory): check the folder and its disk"),
    "hunt, simulated": (no_drain(virtual=True), "backend simulated simulates its ranks"),
    "hunt, slowed": (no_drain(slowed=("by=10%",)), "ranks were slowed on purpose (--slowed)"),
    "hunt, oversubscribed": (no_drain("oversubscribed"), "more ranks than cores were running: start fewer"),
    "hunt, shared GPU": (no_drain("shared_gpu"), "several ranks used one GPU: start one rank per GPU"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text
