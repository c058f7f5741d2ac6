"""amd-smi topology: text and JSON give the same machine, and damaged text is refused in a sentence."""

from __future__ import annotations

import json

import pytest

from collbench.machine.distance import Distances
from collbench.machine.model import Machine
from collbench.machine.readers import smi
from collbench.report.machine import tree_lines

A, B, C = "0000:03:00.0", "0000:23:00.0", "0000:43:00.0"
XGMI, PCIE = {(A, B), (B, A)}, {(A, C), (C, A), (B, C), (C, B)}


def word(a: str, b: str) -> str:
    """The type of a link."""
    return "SELF" if a == b else "XGMI" if (a, b) in XGMI else "PCIE"


def table(title: str, cases: dict[tuple[str, str], str]) -> str:
    """One table of the tool."""
    rows = [f"{a} {' '.join(cases[a, b].ljust(12) for b in (A, B, C))}" for a in (A, B, C)]
    return "\n".join([f"{title} TABLE:", f"             {A} {B} {C}", *rows, ""])


PAIRS = [(a, b) for a in (A, B, C) for b in (A, B, C)]
TEXT = "\n".join(
    [
        table("ACCESS", {pair: "DISABLED" if pair in PCIE else "ENABLED" for pair in PAIRS}),
        table("WEIGHT", {(a, b): "0" if a == b else "15" if (a, b) in XGMI else "40" for a, b in PAIRS}),
        table("LINK TYPE", {pair: word(*pair) for pair in PAIRS}),
        table("NUMA BW", dict.fromkeys(PAIRS, "50000-50000")),
        "Legend:\n  SELF = Current GPU\n",
    ]
)
JSON = json.dumps(
    [
        {
            "gpu": index,
            "bdf": a,
            "links": [
                {"gpu": i, "bdf": b, "link_status": "DISABLED" if (a, b) in PCIE else "ENABLED", "link_type": word(a, b)}
                for i, b in enumerate((A, B, C))
            ],
        }
        for index, a in enumerate((A, B, C))
    ],
    indent=4,
)


@pytest.mark.parametrize("text", [TEXT, JSON], ids=["text", "JSON"])
def test_gpus_links_and_access(text: str) -> None:
    assert smi.looks_like_amd(text, "x")
    machine = smi.read_amd(text, "topology.txt")
    assert [(gpu.key, gpu.index, gpu.vendor) for gpu in machine.gpus] == [(A, 0, "amd"), (B, 1, "amd"), (C, 2, "amd")]
    assert (machine.paths[A, B], machine.paths[A, C]) == ("XGMI", "PCIE")
    assert (machine.peer_access[A, B], machine.peer_access[C, B]) == ("OK", "NS")
    assert machine.unknown["gpu_links"].startswith("amd-smi ")


def test_the_default_table_shows_which_gpus_xgmi_joins() -> None:
    lines = [line.text for line in tree_lines(smi.read_amd(TEXT, "topology.txt"))]
    assert any("xGMI: to GPU 1 (number " in line for line in lines)


def test_pcie_is_a_path_whose_distance_is_unknown() -> None:
    machine = smi.read_amd(TEXT, "topology.txt")
    assert Distances(machine).path(A, C) == "PCIE"
    assert Distances(Machine(gpus=machine.gpus)).path(A, C) is None
