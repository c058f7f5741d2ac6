"""What hwloc's `lstopo --of xml --whole-io` says of a machine, as plain values."""

from typing import Any
from xml.etree.ElementTree import Element, fromstring

from collbench.machine.readers.linux import cpu_mask

_NETWORK, _VERBS = "2", "3"  # hwloc's osdev_type


def lstopo_facts(text: str) -> dict[str, Any]:
    """Return the facts in lstopo's XML.

    nodes      NUMA node -> CPUs and bytes
    counts     Package, Core, PU -> how many
    functions  PCI address -> class, vendor, device, the bridge above ("" for none), and the NUMA nodes it hangs from
    nics       name -> PCI address ("" for none)
    """
    facts: dict[str, Any] = {"nodes": {}, "counts": {"Package": 0, "Core": 0, "PU": 0}, "functions": {}, "nics": {}}
    for element in fromstring(text).findall("object"):
        _walk(element, "", [], facts)
    return facts


def _walk(element: Element, address: str, near: list[int], facts: dict[str, Any]) -> None:
    kind, here = element.get("type", ""), element.get("pci_busid")
    if kind in facts["counts"]:
        facts["counts"][kind] += 1
    near = _bits(element.get("nodeset", "")) or near
    if kind == "NUMANode":
        facts["nodes"][element.get("os_index", "")] = [_bits(element.get("cpuset", "")), int(element.get("local_memory", "0"))]
    if here:
        class_id, ids = element.get("pci_type", "").split(" ")[:2]
        facts["functions"][here] = [int(number, 16) for number in (class_id, *ids.strip("[]").split(":"))] + [address, near]
    if element.get("osdev_type") in (_NETWORK, _VERBS):
        facts["nics"][element.get("name", "")] = address
    for child in element.findall("object"):
        _walk(child, here or address, near, facts)


def _bits(text: str) -> list[int]:
    """CPUs or nodes of hwloc's "0x000000ff,,0x0", an empty word being all zeros."""
    return sorted(cpu_mask(",".join(word.removeprefix("0x") or "0" for word in text.split(","))))
