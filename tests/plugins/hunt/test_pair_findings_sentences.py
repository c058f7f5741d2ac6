"""Findings of pairs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collbench.plugins.hunt.pairs import PairFinding
from tests.helpers import Call, said

NAMES = ["node1", "node2", "node3"]


def pair(kind: str, quantity: str, places: tuple[int, ...], **more: object) -> Callable[[], str]:
    finding = PairFinding(kind, quantity, places, 0.51, 2, 4)
    return lambda: finding.replace(**more).sentence(NAMES)


WORDS: dict[str, tuple[Call, str]] = {
    "slow node": (pair("node", "bandwidth", (1,)),
        "node2 sends and receives at 51 % of what the others do (2 of 4 pairs): its NIC, cable or slot"),
    "slow node, all of its places": (pair("node", "bandwidth", (0, 1)),
        "node1 sends and receives at 51 % of what the others do (2 of 4 pairs): its NIC, cable or slot"),
    "slow sender": (pair("sender", "bandwidth", (1,), where="to other hosts"),
        "node2 sends at 51 % of what the others do to other hosts (2 of 4 pairs): its way out (NIC, cable, or what leads to the NIC)"),
    "slow receiver": (pair("receiver", "bandwidth", (1,), where="inside its host", latency_ratio=0.5),
        "node2 receives at 51 % of what the others do inside its host (2 of 4 pairs): its cores, memory or GPU link; a small message "
        "takes 2.00 times as long"),
    "node with slow small messages": (pair("node", "latency", (2,)),
        "node3 takes 1.96 times as long as the others for a small message (2 of 4 pairs): its CPU, its power saving or its NIC"),
    "slow pair": (pair("pair", "bandwidth", (0, 2), latency_ratio=0.5),
        "node1 to node3 reaches 51 % of what their other pairs suggest: the path between them, since both are fast with others; a "
        "small message takes 2.00 times as long"),
    "slow pair, both ways": (pair("pair", "bandwidth", (0, 2), both_ways=True),
        "node1 and node3 reach 51 % of what their other pairs suggest, both ways: the path between them, since both are fast with "
        "others"),
    "slow pair or end": (pair("pair", "bandwidth", (0, 2), unknown=(2,)),
        "node1 to node3 reaches 51 % of what their other pairs suggest: the path between them, or node3, of which too few other "
        "pairs were measured"),
    "pair with slow small messages": (pair("pair", "latency", (0, 2)),
        "node1 and node3 take 1.96 times as long as their other pairs suggest for a small message: the path between them, since both "
        "are fast with others"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text


def test_json_has_the_fields_and_the_sentence() -> None:
    finding = PairFinding("pair", "bandwidth", (0, 2), 0.51, 1, 2, unknown=(2,))
    assert finding.stored(NAMES) == {
        "kind": "pair", "quantity": "bandwidth", "places": [0, 2], "ratio": 0.51, "cells": 1, "of_cells": 2, "both_ways": False,
        "where": "", "latency_ratio": None, "untold": [2], "host": None, "sentence": finding.sentence(NAMES),
    }  # fmt: skip
