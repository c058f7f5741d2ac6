"""Which parts of a machine a ceiling's words name, so that a picture can mark them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from collbench.errors import UsageError
from collbench.machine.model import SWITCH, Machine
from collbench.machine.peak.gpu_links import wires_of
from collbench.machine.peak.nics import NicRate, egress_of
from collbench.machine.peak.pcie import PcieTree

_ONE_NIC = re.compile(r"NIC (\S+) [\d.e+]+ Gb/s")  # "NIC eth0 1 Gb/s, TCP"; several are counted: "NIC 4×100 Gb/s"
_BRIDGE = re.compile(r"the PCIe link above (\S+)")
_OF_A_PAIR = re.compile(r"(?:NVLink|xGMI) (\d{1,4})×\S+ GB/s of a pair")
_PCIE = re.compile(r"PCIe Gen\d x\d+")


def limiting_parts(machine: Machine, limited_by: str) -> frozenset[str]:
    """What `report.probe_picture.picture` is to mark for a ceiling's `limited_by`, such as "NIC 4×100 Gb/s", "NVLink 12×25 GB/s".

    Several where only all of them together, or each for itself, have that rate; of a mesh the links of one GPU. None where the words
    name nothing that this machine has: a memory copy, a virtual interface, a link of another node.
    """
    try:
        return frozenset(found for words in limited_by.split(" and ") for found in _named(machine, words))
    except UsageError:  # the sources contradict each other
        return frozenset()


def _named(machine: Machine, words: str) -> Iterator[str]:
    tree = PcieTree(machine)
    if words.startswith("NIC "):
        yield from _nics(machine, words, tree)
    elif bridge := _BRIDGE.match(words):
        yield from ({bridge[1]} & tree.devices.keys())
    elif pcie := _PCIE.match(words):
        yield from (gpu.address or gpu.key for gpu in machine.gpus if tree.of_gpu(gpu).name == pcie[0])
    elif words.startswith(("NVLink ", "xGMI ")):
        yield from _gpu_links(machine, words)


def _nics(machine: Machine, words: str, tree: PcieTree) -> Iterator[str]:
    one = _ONE_NIC.match(words)
    if one and "×" not in one[1]:
        yield from (nic.name for nic in machine.nics if nic.virtual is None and one[1] in (nic.name, *nic.interfaces))
        return
    egress = egress_of(machine, tree)
    in_slots = " in slots of " in words
    if not _is(words, egress.link.name) or in_slots != (" in slots of " in egress.link.name):
        return
    yield from (name for slot in egress.nics for name in slot.name.split("+"))
    if in_slots:
        yield from (slot.address for slot in egress.nics if slot.address and _narrow(slot))


def _narrow(slot: NicRate) -> bool:
    """Whether the slot carries less than its ports."""
    return slot.slot.known < sum(slot.port_bits_per_s) / 8 * slot.payload


def _gpu_links(machine: Machine, words: str) -> Iterator[str]:
    """All links of each GPU that has links of this name; of a mesh, where every line has two ends, those of the first such GPU."""
    keys = [gpu.key for gpu in machine.gpus]
    links = [link for link in machine.gpu_links if link.b in keys or link.b == SWITCH]
    if pair := _OF_A_PAIR.match(words):
        yield from [link.key for link in links if link.count == int(pair[1]) and link.b != SWITCH][:1]
        return
    wires = wires_of(machine, keys)
    named = [key for key in keys if _is(words, wires.out_of(key).name)]
    meshed = [link.key for link in links if link.a == named[0] and link.b != SWITCH] if named else []
    yield from meshed or [link.key for link in links if link.a in named]


def _is(words: str, name: str) -> bool:
    """Whether the words begin with the name, and no longer number follows."""
    return words.startswith(name) and not words[len(name) : len(name) + 1].isalnum()
