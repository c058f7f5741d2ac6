"""Nodes that were typed instead of probed: `--nic 4x100Gb --nvlink 150 --pcie gen4x16`."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import isclose

from collbench.errors import UsageError
from collbench.machine.peak.link import RCCL, Link, unknown
from collbench.machine.peak.node import Node, capped
from collbench.machine.peak.pcie import gen
from collbench.machine.peak.rates import rates

_NIC = re.compile(r"(?:(\d{1,4})\s*[x×*]\s*)?(\d{1,6}(?:\.\d{1,3})?)\s*(?:gb|gbit|g)(?:/s|ps)?", re.IGNORECASE)
_PCIE = re.compile(r"(?:pcie\s*)?gen\s*([1-6])\s*x\s*(1|2|4|8|16)", re.IGNORECASE)
_MOST_GBIT = 10_000
_MOST_GB = 100_000


@dataclass(frozen=True)
class Given:
    """What was typed of a node; None where nothing was.

    nic         (number, bits per second of each)
    nvlink      bytes per second of one GPU, one direction
    pcie        the link of one GPU
    nvls        its NVSwitches add
    """

    nic: tuple[int, float] | None = None
    nvlink: float | None = None
    pcie: Link | None = None
    nvls: bool = False

    @property
    def nics(self) -> Link | None:
        """All NICs together."""
        if self.nic is None:
            return None
        count, bits_per_s = self.nic
        total = count * bits_per_s / 8
        return Link(total, f"NIC {count}×{bits_per_s / 1e9:g} Gb/s", "--nic", total)


def parse_nic(text: str) -> tuple[int, float]:
    """Number and bits per second of "4x100Gb", "8x400Gb", "25Gb". Raises UsageError."""
    match = _NIC.fullmatch(text.strip())
    count, gbit = (int(match[1] or 1), float(match[2])) if match else (0, 0.0)
    if not 0 < count <= 1024 or not 0 < gbit <= _MOST_GBIT:
        raise UsageError(
            f"--nic '{_short(text)}' is no number of NICs times their rate: write it like 4x100Gb or 8x400Gb (Gb/s, at most 10000)"
        )
    return count, gbit * 1e9


def parse_pcie(text: str) -> Link:
    """The link of "gen4x16". Raises UsageError."""
    match = _PCIE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--pcie '{_short(text)}' is no PCIe link: write generation (1 to 6) and lanes like gen4x16")
    return gen(int(match[1]), int(match[2]), "--pcie")


def parse_gigabytes(option: str, text: str) -> float:
    """Bytes per second of a rate in GB/s. Raises UsageError for what is no rate of any hardware."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= _MOST_GB:
        raise UsageError(f"{option} '{_short(text)}' is no rate: write GB/s, a number above 0 and at most {_MOST_GB}")
    return value * 1e9


def given_node(gpus: int, given: Given) -> Node:
    """A node of `gpus` GPUs of which only what was typed is known."""
    none = unknown("the links between the GPUs are not given: say --nvlink GB/s or --pcie gen4x16")
    pcie = given.pcie
    egress = given.nics or unknown("the NICs are not given: say --nic like 4x100Gb")
    if pcie is None:
        return with_given(Node(gpus, none, egress), given)
    return with_given(Node(gpus, pcie, capped(egress, [pcie] * gpus), pcie, pcie, pcie, apart=False), given)


def with_given(node: Node, given: Given) -> Node:
    """The node with the links between GPUs that were typed in place of what was probed."""
    if given.nvlink and node.gpus > 1:
        link = _between_gpus(given.nvlink, node.gpus)
        node = replace(node, injection=link, pair=link, neighbours=link, apart=True, cuts=())
    return replace(node, nvls=node.nvls or given.nvls)


def _between_gpus(rate: float, gpus: int) -> Link:
    """Return the links of one GPU, with the library's constant: NCCL's of NVLinks that add up to this rate, else RCCL's of xGMI links.

    AMD's GPUs have one link to each other one: 448 GB/s are 7 links of 64 GB/s on 8 MI300X.
    """
    nvlink = _nvlink(rate)
    if nvlink.nccl_bytes_per_s is not None:
        return nvlink
    fitting = (row for row in rates().xgmi if isclose((gpus - 1) * row.gb_per_s * 1e9, rate, rel_tol=1e-6))
    row = next(fitting, None)
    if row is None:
        return nvlink
    return Link(rate, f"xGMI {gpus - 1}×{row.gb_per_s:g} GB/s", "--nvlink", (gpus - 1) * row.rccl_gb_per_s * 1e9, RCCL)


def _nvlink(rate: float) -> Link:
    """NCCL's constant is that of a GPU whose links add up to this."""
    by_architecture = {architecture: row for row in rates().nvlink for architecture in row.architectures}
    models = [(gpu.links, by_architecture[gpu.architecture]) for gpu in rates().gpu if gpu.architecture in by_architecture]
    same = [links * row.nccl_gb_per_s * 1e9 for links, row in models if links * row.gb_per_s * 1e9 == rate]
    return Link(rate, f"NVLink {rate / 1e9:g} GB/s", "--nvlink", min(same, default=None))


def _short(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:40])
