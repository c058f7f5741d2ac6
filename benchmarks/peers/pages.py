"""Which pages a peer's memory lies on: looked at from outside, in a launch of its own that is not timed."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

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
