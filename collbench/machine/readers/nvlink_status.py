"""`nvidia-smi nvlink -s`: the NVLinks of each GPU that are up, their speed, and the others; `nvidia-smi c2c -s`: links to the CPU."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collbench.machine.model import Gpu, GpuLink, Machine
from collbench.machine.readers.doubts import few
from collbench.machine.readers.text import HEAD, Reader, Unreadable, bounded, printable

KIND = "nvidia-smi nvlink -s"
_GPU = re.compile(r"^\s*GPU (\d{1,3}): (.{1,200}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{8,64})\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d{1,3}): (?:<(inactive)>|(\d{1,4}(?:\.\d{1,6})?) GB/s)\s*$", re.IGNORECASE)
_C2C = re.compile(r"^\s*C2C Link (\d{1,3}): (\d{1,4}(?:\.\d{1,6})?) GB/s\s*$", re.IGNORECASE)
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
    c2c: dict[int, float] = field(default_factory=dict)
    complete: bool = False  # the list of its NVLinks has ended


def looks_like(text: str, name: str) -> bool:
    """Lines "GPU 0: …" with lines "Link 0: …" or "C2C Link 0: …" under them."""
    lines = text[:HEAD].splitlines()
    links = (_LINK.match(line) or _C2C.match(line) or _ALL_INACTIVE.search(line) for line in lines)
    return any(map(starts, lines)) and any(links)


def starts(line: str) -> bool:
    """Whether the line begins a GPU's block."""
    return bool(_GPU.match(line))


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
        unknown=_unknown(found, silent, bool(links)),
        doubts=few(_doubts(found)),
    )


def _unknown(found: Mapping[int, _Status], silent: Sequence[int], counted: bool) -> dict[str, str]:
    """Why the links of some GPUs are unknown, or those of all: `c2c -s` lists no NVLinks."""
    unknown = {f"gpus/gpu{index}/links_off": "the file lists no links of it" for index in silent}
    return unknown if counted or not found else {**unknown, "gpu_links": "the file lists no NVLinks"}


def _statuses(text: str, name: str) -> dict[int, _Status]:
    bounded(text, name, _MOST_CHARACTERS, "a machine's NVLinks", "give one machine's output")
    found: dict[int, _Status] = {}
    current: _Status | None = None
    for line in text.splitlines():
        if match := _GPU.match(line[:400]):
            current = _status(found, int(match[1]), printable(match[2]), match[3], name)
        elif current and (match := _C2C.match(line[:400])):
            current.c2c[int(match[1])] = float(match[2])
        elif current and _ALL_INACTIVE.search(line[:400]):
            current.all_inactive = True
        elif line.lstrip().startswith("Link "):
            _add_link(current, line, name)
    return found


def _status(found: dict[int, _Status], index: int, model: str, uuid: str | None, name: str) -> _Status:
    """The block of a GPU, which may come again below another tool's heading. Raises Unreadable when it is another machine's."""
    known = found.get(index)
    if known is None:
        known = found[index] = _Status(model, uuid)
    elif (known.model, known.uuid) != (model, uuid):
        raise Unreadable(f"{printable(name)} lists GPU {index} twice: give the output for one machine")
    else:
        known.complete = bool(known.links) or known.all_inactive
    return known


def _add_link(status: _Status | None, line: str, name: str) -> None:
    if status and status.complete:
        raise Unreadable(f"{printable(name)} lists the NVLinks of a GPU twice: give the output for one machine")
    match = _LINK.match(line[:400])
    speed = float(match[3]) if match and match[3] else None
    if not match or not status or int(match[1]) in status.links or (speed is not None and not 0 < speed <= _MOST_GB_PER_S):
        raise Unreadable(
            f"{printable(name)}: the line {printable(line.strip(), 60)!r} is no NVLink's status: save `nvidia-smi nvlink -s` again"
        )
    status.links[int(match[1])] = speed


def _gpu(index: int, status: _Status) -> Gpu:
    off = sum(speed is None for speed in status.links.values()) if status.links else None
    rates = set(status.c2c.values())
    return Gpu(
        f"gpu{index}", index=index, vendor="nvidia", model=status.model, uuid=status.uuid, links_off=off,
        c2c_links=len(status.c2c) or None, c2c_bytes_per_s=rates.pop() * 1e9 if len(rates) == 1 else None,
    )  # fmt: skip


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


NVLINK_STATUS = Reader(KIND, looks_like, read, lists=frozenset({"gpus", "gpu_links"}), starts=starts)
