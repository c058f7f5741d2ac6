"""Whether two sources say the same of a fact: numbers within a tolerance, names in each source's own words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from collbench.machine.model import Disagreement, Machine

# EDR is 100 Gb/s of data and 103.125 on the wire, an NVLink 25 and 25.781: tools print either. 180 of 200 Gb/s is another matter.
_TOLERANCE = 0.04
# Each source's own words or its own view: names from other data bases, the MTU of a device and of its network interface,
# and NCCL's files, which leave bridges out.
_WORDS = {"model", "name", "rate_text", "cpu_model", "kind", "interfaces", "counters", "mtu_bytes", "virtual", "parent"}


class Said(NamedTuple):
    """What a source says."""

    source: str
    value: Any


def agree(path: str, said: Sequence[Said]) -> Iterator[Disagreement]:
    """What the lower sources say otherwise than the first one, which is taken."""
    name = path.rpartition("/")[2]
    if name in _WORDS:
        return
    for other in said[1:]:
        if not _alike(name, said[0].value, other.value):
            yield Disagreement(path, written(name, said[0].value), said[0].source, written(name, other.value), other.source)


def counted(taken: Machine, other: Machine, taken_from: str, other_from: str) -> Iterable[Disagreement]:
    """GPUs of which two sources count different numbers of links."""
    ours, theirs = _counts(taken), _counts(other)
    for gpu, count in ours.items():
        if gpu in theirs and theirs[gpu] != count:
            yield Disagreement(f"gpu_links/{gpu}", f"{count} links", taken_from, f"{theirs[gpu]} links", other_from)


def _counts(machine: Machine) -> Counter[str]:
    counts: Counter[str] = Counter()
    for link in machine.gpu_links:
        counts[link.a] += link.count
    return counts


def written(name: str, value: Any) -> str:
    """A fact for people: "180 Gb/s", "25 GB/s", "16 GT/s", "80 GiB"."""
    if name.endswith("bits_per_s"):
        return f"{value / 1e9:g} Gb/s"
    if name.endswith("bytes_per_s"):
        return f"{value / 1e9:g} GB/s"
    if name.endswith("gt_per_s"):
        return f"{value:g} GT/s"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.4g} GiB"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _alike(name: str, one: Any, other: Any) -> bool:
    if name.endswith(("per_s", "memory_bytes", "shm_bytes")):
        return bool(abs(one - other) <= _TOLERANCE * max(abs(one), abs(other)))
    if name == "hostname":
        return bool(one.partition(".")[0] == other.partition(".")[0])
    if isinstance(one, tuple):
        return set(one) == set(other)
    return bool(_folded(one) == _folded(other))


def _folded(value: Any) -> Any:
    """Texts without case and without zeros in front: "GPU-AB", "gpu-ab"; 0x is written or not."""
    return value.lower().removeprefix("0x").lstrip("0") if isinstance(value, str) else value
