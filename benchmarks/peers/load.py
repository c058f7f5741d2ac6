"""What is measured in one launch of either side, so that both do the same: sizes, counts, and the pages buffers lie on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.launches import LaunchFailed

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
