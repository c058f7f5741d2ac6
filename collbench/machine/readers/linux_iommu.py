"""What the IOMMU does to GPUs and NICs: nothing, pass their addresses through, or translate them (which slows transfers between them)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from collbench.machine.files import Files
from collbench.machine.model import System
from collbench.machine.readers.text import whole

State = Literal["off", "passthrough", "translating"]
_GROUPS = "/sys/kernel/iommu_groups"
_CLASS = "/sys/class/iommu"
_TYPES = ("identity", "DMA", "DMA-FQ")


def state(files: Files, addresses: frozenset[str], system: System) -> tuple[State | None, str | None]:
    """The state for the devices at `addresses`, for all devices when none of these is in a group; or None and why.

    The groups say it since Linux 4.11 (`type`); before, the kernel's command line where it speaks. No groups: the IOMMU is off.
    """
    groups = files.names(_GROUPS)
    if not groups and (files.real(_GROUPS) or files.real(_CLASS)) and not files.names(_CLASS):
        return "off", None
    types = _types(files, groups, addresses)
    if types:
        return ("passthrough" if types == {"identity"} else "translating"), None
    told = _told(_words(system.command_line or "", system.cpu_vendor), bool(groups))
    return told, None if told else f"{_GROUPS} and the kernel's command line do not tell"


def _types(files: Files, groups: tuple[str, ...], addresses: frozenset[str]) -> set[str]:
    ours = [group for group in groups if addresses & set(files.names(f"{_GROUPS}/{group}/devices"))]
    texts = (files.text(f"{_GROUPS}/{group}/type") for group in ours or groups if whole(group) is not None)
    return {text for text in texts if text in _TYPES}


def _told(words: Mapping[str, str], groups: bool) -> State | None:
    """What the command line tells; passthrough asked for is no proof that there is an IOMMU: groups are, or its own "on"."""
    if not groups and "off" in words.values():
        return "off"
    on = "on" in words.values()
    if (groups or on) and (words.get("iommu") == "pt" or words.get("iommu.passthrough") == "1"):
        return "passthrough"
    return "translating" if on or (groups and words.get("iommu.passthrough") == "0") else None


def _words(line: str, vendor: str | None) -> Mapping[str, str]:
    """The IOMMU's words of a command line that this processor heeds; the last of a name counts, of "on,sm_on" the first part."""
    own = {"GenuineIntel": "intel_iommu", "AuthenticAMD": "amd_iommu"}.get(vendor or "", "iommu")
    pairs = (word.partition("=") for word in line.split() if re.match(rf"(?:iommu|{own}|iommu\.passthrough)=", word))
    return {name: value.split(",")[0] for name, _, value in pairs}
