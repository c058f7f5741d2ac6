"""What is measured in one launch of either side, so that both do the same: sizes, counts, and the pages buffers lie on."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tools.benchmarks.launches import LaunchFailed

LOOPBACK = "lo"
# All on the heap, where only the start is not on huge pages: separate mappings begin anywhere, and have up to 4 MiB of small pages.
_HUGE = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432"


@dataclass(frozen=True)
class Load:
    """Sizes in bytes, ascending; timed iterations and warm-ups per size.

    huge: collbench takes 2 MiB pages for buffers of 4 MiB and more. The C library's allocator, which the peers (and the MPI
    library, for buffers of its own) use, then requests them, too, in both launches.
    """

    sizes: Sequence[int]
    iterations: int
    warmup: int
    huge: bool = False

    def environment(self) -> list[str]:
        """The words before a program, of either side: pages alike, and Gloo's traffic over the same interface."""
        return ["env", "-u", "GLIBC_TUNABLES", f"GLOO_SOCKET_IFNAME={LOOPBACK}", *([_HUGE] if self.huge else [])]


SMALL = Load((8, 65536, 1 << 20), 1000, 200)
LARGE = Load((16 << 20,), 60, 15, huge=True)
RATE = Load((8,), 1000, 200)


def wanted(values: Mapping[int, float], sizes: Sequence[int], who: str) -> dict[int, float]:
    """The values of these sizes. Raises LaunchFailed for a missing or invalid one."""
    for size in sizes:
        if not values.get(size, 0) > 0:
            raise LaunchFailed(f"{who} printed no time for {size} bytes")
    return {size: values[size] for size in sizes}


def rows(text: str) -> list[list[float]]:
    """The lines of a table that hold numbers only, two at least, the first of them whole: a size and its figures."""
    found = []
    for line in text.splitlines():
        words = line.split()
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            continue
        if len(words) > 1 and words[0].isascii() and words[0].isdigit() and all(abs(number) < float("inf") for number in numbers):
            found.append(numbers)
    return found


# The pages that a peer's memory lies on, read from outside, in a launch of its own that is not timed.

_EVERY_S = 0.01


def huge_bytes(command: Sequence[str], name: str, env: Mapping[str, str]) -> int:
    """The most memory on huge pages that one process of the program `name` held while the command ran, in bytes."""
    most = 0
    with tempfile.TemporaryDirectory(prefix="benchmark-pages-") as folder:
        started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder, env=env)
        while started.poll() is None:
            most = max([most, *map(_huge, _called(started.pid, name))])
            time.sleep(_EVERY_S)
    return most


def _called(parent: int, name: str) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(parent).children(recursive=True) if child.name() == name[:15]]
    except psutil.Error:
        return []


def _huge(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    found = re.search(r"AnonHugePages:\s*(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def sentence(held: int, size: int, huge: bool, who: str) -> str:
    """What was seen, and whether it is what the load asked for: a buffer of `size` bytes on huge pages (nine tenths), or none."""
    matched = held >= 0.9 * size if huge else held < size
    return f"{who} held {held / 2**20:.0f} MiB per process on huge pages{'' if matched else ': NOT as collbench'}."
