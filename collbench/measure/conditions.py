"""What a rank's CPUs were allowed and made to do while a cell was measured. Everything is readable without privileges on Linux."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_STAT = Path("/proc/stat")
_CPUS = Path("/sys/devices/system/cpu")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_STEAL_FIELD = 7  # of a cpu line in /proc/stat: user nice system idle iowait irq softirq steal (proc(5))
_NOTICEABLE_STEAL = 0.02
_FEWEST_TICKS = 5  # of 10 ms: less is a rounding


@dataclass(frozen=True)
class Moment:
    """Counters of this process and of the CPUs it may use; two of them make a `Span`. Ticks are the kernel's (10 ms)."""

    stolen: int
    ticks: int
    preempted: int


@dataclass(frozen=True)
class Span:
    """What happened between two moments.

    stolen     share of the CPUs' time that the hypervisor gave to others (0 … 1); None where the kernel does not count it
    preempted  how often this process lost its core against its will
    """

    stolen: float | None
    preempted: int

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def now(stat: Path = _STAT) -> Moment:
    """The counters at this moment; zeros where there is no /proc."""
    usable = {f"cpu{cpu}" for cpu in os.sched_getaffinity(0)}
    rows = [line.split()[1:] for line in _lines(stat) if line.startswith("cpu") and line.partition(" ")[0] in usable]
    counts = [[int(field) for field in row[: _STEAL_FIELD + 1] if field.isdecimal()] for row in rows]
    stolen = sum(row[_STEAL_FIELD] for row in counts if len(row) > _STEAL_FIELD)
    return Moment(stolen, sum(map(sum, counts)), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)


def between(before: Moment, after: Moment) -> Span:
    """What happened from `before` to `after`."""
    ticks, stolen = after.ticks - before.ticks, after.stolen - before.stolen
    known = after.ticks > 0 and ticks >= 0 and stolen >= 0
    return Span((stolen / ticks if stolen >= _FEWEST_TICKS else 0.0) if known else None, max(0, after.preempted - before.preempted))


def noticeable(stolen: float | None) -> bool:
    """Whether the hypervisor took so much that times mean something else."""
    return stolen is not None and stolen > _NOTICEABLE_STEAL


def settings(cpus_folder: Path = _CPUS, huge_pages: Path = _HUGE_PAGES) -> dict[str, Any]:
    """What does not change from cell to cell on this rank: frequency governor and boost of its CPUs, huge pages; None is unknown."""
    names = sorted({text for cpu in os.sched_getaffinity(0) if (text := _text(cpus_folder / f"cpu{cpu}" / "cpufreq" / "scaling_governor"))})
    return {"governor": "+".join(names) or None, "boost": _boost(cpus_folder), "huge_pages": _chosen(_text(huge_pages))}


def binding(cpus: Sequence[Sequence[str]]) -> str:
    """How ranks are bound, from the names of the CPUs each may use: "each rank on 1 CPU of its own", "ranks share 2 CPUs"."""
    sizes, together = [len(set(each)) for each in cpus], {cpu for each in cpus for cpu in each}
    if len(sizes) > 1 and sum(sizes) == len(together):
        most = max(sizes)
        return f"each rank on {most} CPU{'s' if most > 1 else ''} of its own"
    return f"ranks share {len(together)} CPU{'s' if len(together) != 1 else ''}"


def _boost(cpus_folder: Path) -> bool | None:
    """Turbo, as the generic driver or Intel's tells it."""
    generic, intel = _text(cpus_folder / "cpufreq" / "boost"), _text(cpus_folder / "intel_pstate" / "no_turbo")
    if generic in ("0", "1"):
        return generic == "1"
    return intel == "0" if intel in ("0", "1") else None


def _chosen(text: str | None) -> str | None:
    """The word in brackets: "always [madvise] never" is madvise."""
    return next((word.strip("[]") for word in (text or "").split() if word.startswith("[")), None)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None


def _lines(path: Path) -> list[str]:
    return (_text(path) or "").splitlines()
