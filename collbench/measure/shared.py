"""Memory that the ranks of a host share: for the barrier before a sample, and for the canary."""

from __future__ import annotations

import mmap
import os
import secrets
from pathlib import Path

from collbench.control.world import World

_FOLDER = Path("/dev/shm")


def shared_page(world: World, size_bytes: int) -> mmap.mmap:
    """Zeroed memory that the ranks of a host share. Its file is gone from /dev/shm before it is used. All ranks call it together."""
    leader = world.on_host()[0].rank == world.rank
    name = _FOLDER / f"collbench-{secrets.token_hex(8)}"
    names = dict(world.agree((world.me.host, str(name)) if leader else ("", ""), "sharing memory"))
    name = Path(names[world.me.host])
    if leader:
        name.write_bytes(bytes(size_bytes))
    world.agree(None, "sharing memory")
    handle = os.open(name, os.O_RDWR)
    page = mmap.mmap(handle, size_bytes)
    os.close(handle)
    world.agree(None, "sharing memory")
    if leader:
        name.unlink(missing_ok=True)
    return page
