"""How many GPUs a CUDA program started here would see, told from files and the environment alone: the command line asks at every start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "CUDA_VISIBLE_DEVICES"
_NODE = re.compile(r"nvidia(\d+)")


@dataclass(frozen=True)
class Chosen:
    """What CUDA_VISIBLE_DEVICES leaves of the GPUs that are there.

    gpus   the GPUs' places, or the name of a MIG instance, in CUDA's order
    wrong  the entry at which CUDA stops reading, and which hides everything after it; None: it reads to the end
    """

    gpus: tuple[int | str, ...]
    wrong: str | None = None


def visible_gpus(env: Mapping[str, str], root: Path = Path("/")) -> int:
    """How many GPUs CUDA would show: those with a device node, as CUDA_VISIBLE_DEVICES leaves them. 0 without a driver."""
    identifiers = present_gpus(root)
    return len(chosen(env.get(VARIABLE), identifiers).gpus)


def present_gpus(root: Path = Path("/")) -> list[str]:
    """The UUID of each GPU with a device node in /dev, in the driver's order; "" where the driver does not tell it."""
    minors = sorted(int(node[1]) for path in _children(root / "dev") if (node := _NODE.fullmatch(path.name)))
    uuids = dict(_facts(folder / "information") for folder in _children(root / "proc/driver/nvidia/gpus"))
    return [uuids.get(minor, "") for minor in minors]


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _facts(information: Path) -> tuple[int, str]:
    """(minor number of the device node, UUID) from the driver's page about a GPU; (-1, "") where it cannot be read."""
    try:
        text = information.read_text(errors="replace")
    except OSError:
        return -1, ""
    minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
    uuid = re.search(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]+)\s*$", text, re.MULTILINE)
    return int(minor[1]) if minor else -1, uuid[1] if uuid else ""


def chosen(variable: str | None, uuids: Sequence[str]) -> Chosen:
    """Reads CUDA_VISIBLE_DEVICES as CUDA does (CUDA programming guide, "CUDA environment variables"), over GPUs with these UUIDs.

    Entries are indices, beginnings of UUIDs that fit one GPU, or names of MIG instances, of which CUDA shows a single one. It stops
    at the first entry that is none of these, and shows nothing at all where a GPU is named twice.
    """
    if variable is None:
        return Chosen(tuple(range(len(uuids))))
    found: list[int | str] = []
    for entry in variable.split(",") if variable.strip() else []:
        gpu = _gpu_of(entry.strip(), uuids)
        if gpu is None:
            return Chosen(tuple(found), entry.strip())
        if gpu in found:
            return Chosen((), entry.strip())
        found.append(gpu)
        if isinstance(gpu, str):
            break
    return Chosen(tuple(found))


def _gpu_of(entry: str, uuids: Sequence[str]) -> int | str | None:
    """A GPU's place, a MIG instance's name, or None for what CUDA stops at."""
    if entry.startswith("MIG-"):
        return entry if uuids else None
    if entry.startswith("GPU-"):
        fitting = [place for place, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
        return fitting[0] if len(fitting) == 1 else None
    index = re.match(r"\+?(\d+)", entry, re.ASCII)  # CUDA reads the digits that an entry begins with, as strtoul does
    return int(index[1]) if index and int(index[1]) < len(uuids) else None
