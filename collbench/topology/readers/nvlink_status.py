"""`nvidia-smi nvlink -s`: how many NVLinks of each GPU are up, at what speed, and how many are not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.topology.model import Gpu, GpuLink, Machine
from collbench.topology.readers.doubts import few
from collbench.topology.text import HEAD, Unreadable, bounded, printable

KIND = "nvidia-smi nvlink -s"
_GPU = re.compile(r"^\s*GPU (\d{1,3}): (.{1,200}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{8,64})\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d{1,3}): (?:<(inactive)>|(\d{1,4}(?:\.\d{1,6})?) GB/s)\s*$", re.IGNORECASE)
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_MOST_CHARACTERS = 2 << 20
_MOST_GB_PER_S = 200.0  # of one link; generation 5 prints 53.125


@dataclass
class _Status:
    """What the text lists of one GPU: GB/s by link number, None for an inactive one."""

    model: str
    uuid: str | None
    links: dict[int, float | None] = field(default_factory=dict)
    all_inactive: bool = False


def looks_like(text: str, name: str) -> bool:
    """Lines "GPU 0: …" with lines "Link 0: …" under them."""
    lines = text[:HEAD].splitlines()
    return any(_GPU.match(line) for line in lines) and any(_LINK.match(line) or _ALL_INACTIVE.search(line) for line in lines)


def read(text: str, name: str) -> Machine:
    """GPUs "gpu0"… with their links counted, `bytes_per_s` as printed; the far ends are not told here.

    Raises Unreadable when no GPU is listed, one is listed twice, or a link's line cannot be read.
    """
    found = _statuses(text, name)
    if not found:
        raise Unreadable(f"{printable(name)} lists no GPU: save the output of `nvidia-smi nvlink -s` into it")
    links = [link for index, status in found.items() if (link := _link(index, status))]
    silent = [index for index, status in found.items() if not status.links and not status.all_inactive]
    return Machine(
        sources=(f"{KIND} {printable(name)}",),
        gpus=tuple(_gpu(index, status) for index, status in found.items()),
        gpu_links=tuple(links),
        unknown={f"gpus/gpu{index}/links_off": "the file lists no links of it" for index in silent},
        doubts=few(_doubts(found)),
    )


def _statuses(text: str, name: str) -> dict[int, _Status]:
    bounded(text, name, _MOST_CHARACTERS, "a machine's NVLinks", "give one machine's output")
    found: dict[int, _Status] = {}
    current: _Status | None = None
    for line in text.splitlines():
        if match := _GPU.match(line[:400]):
            if int(match[1]) in found:
                raise Unreadable(f"{printable(name)} lists GPU {int(match[1])} twice: give the output for one machine")
            current = found[int(match[1])] = _Status(printable(match[2]), match[3])
        elif current and _ALL_INACTIVE.search(line[:400]):
            current.all_inactive = True
        elif line.lstrip().startswith("Link "):
            _add_link(current, line, name)
    return found


def _add_link(status: _Status | None, line: str, name: str) -> None:
    match = _LINK.match(line[:400])
    speed = float(match[3]) if match and match[3] else None
    if not match or not status or int(match[1]) in status.links or (speed is not None and not 0 < speed <= _MOST_GB_PER_S):
        raise Unreadable(
            f"{printable(name)}: the line {printable(line.strip(), 60)!r} is no NVLink's status: save `nvidia-smi nvlink -s` again"
        )
    status.links[int(match[1])] = speed


def _gpu(index: int, status: _Status) -> Gpu:
    off = sum(speed is None for speed in status.links.values()) if status.links else None
    return Gpu(f"gpu{index}", index=index, vendor="nvidia", model=status.model, uuid=status.uuid, links_off=off)


def _link(index: int, status: _Status) -> GpuLink | None:
    """The links that are up, as one: 0 when all are told to be off, None when nothing is told."""
    speeds = _speeds(status)
    if not status.links and not status.all_inactive:
        return None
    return GpuLink(f"gpu{index}", None, len(speeds), bytes_per_s=speeds[0] * 1e9 if len(set(speeds)) == 1 else None)


def _speeds(status: _Status) -> Sequence[float]:
    return sorted(speed for speed in status.links.values() if speed is not None)


def _doubts(found: Mapping[int, _Status]) -> list[str]:
    """Links of one GPU at different speeds, and a list that may be cut: its links have gaps or are fewer than the others'."""
    doubts: list[str] = []
    most = max(len(status.links) for status in found.values())
    for index, status in found.items():
        speeds = _speeds(status)
        if len(set(speeds)) > 1:
            doubts.append(f"the links of gpu{index} run at different speeds, {speeds[0]:g} to {speeds[-1]:g} GB/s")
        if set(status.links) != set(range(len(status.links))) or 0 < len(status.links) < most:
            doubts.append(f"gpu{index} lists {len(status.links)} links, others {most}: the file may be cut")
    return doubts
