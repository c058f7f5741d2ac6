"""Which lists of a machine a source covers. A list that it does not cover is unknown, not empty.

After `with_reasons`, an empty list without an entry in `Machine.unknown` means that the machine has no such parts.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from collbench.machine.model import Machine

LISTS: Final = {
    "numa_nodes": "NUMA nodes",
    "pci": "PCI devices",
    "gpus": "GPUs",
    "gpu_links": "links between GPUs",
    "nics": "NICs",
    "fabric": "cables",
    "paths": "distances",
    "peer_access": "peer access",
}
_OF_GPUS = ("gpu_links", "peer_access")


def with_reasons(machine: Machine, source: str, listed: Collection[str] = ()) -> Machine:
    """Return the machine with a reason in `unknown` for each empty list that the source does not cover.

    source    the source's name in the reasons, such as "nvidia-smi nvlink -s"
    listed    the lists that the source covers: an empty one without a reason means that there are no such parts
    """
    reasons = {
        name: f"{source} does not list {words}"
        for name, words in LISTS.items()
        if name not in listed and not getattr(machine, name) and name not in machine.unknown
    }
    if "gpus" not in reasons and known_none(machine, "gpus"):
        reasons = {name: why for name, why in reasons.items() if name not in _OF_GPUS}
    return replace(machine, unknown={**machine.unknown, **reasons}) if reasons else machine


def known_none(machine: Machine, name: str) -> bool:
    """Return whether a source reports that the machine has no part of this list."""
    return bool(machine.sources) and not getattr(machine, name) and name not in machine.unknown
