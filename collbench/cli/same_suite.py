"""Whether all ranks have read the same suite: each reads its own host's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.control.world import World
    from collbench.measure.request import Request


def same_suite(request: Request, world: World) -> None:
    """Raises UsageError on all ranks where one could not read the suite, or has read another one. All ranks of `run` call first."""
    if request.suite:
        compare(world, None, request.suite["digest"], request.suite["name"])


def compare(world: World, wrong: str | None, digest: str = "", name: str = "") -> None:
    """Raises UsageError on all ranks where one says what is `wrong` with the suite, or where their digests differ."""
    views = world.agree([wrong, digest, name], "comparing the suite")
    reasons = [reason for reason, _, _ in views]
    rank = next((rank for rank, reason in enumerate(reasons) if reason), None)
    if rank is not None:
        alone = "" if len(set(reasons)) == 1 else f"on {world.members[rank].host}: "
        raise UsageError(f"{alone}{reasons[rank]}")
    other = next((rank for rank, view in enumerate(views) if view[1] != views[0][1]), None)
    if other is not None:
        first, second = world.members[0].host, world.members[other].host
        raise UsageError(
            f"suite {views[0][2]} is not the same text for all ranks: rank 0 on {first} and rank {other} on {second} have read different "
            f"ones: copy one of them to all hosts"
        )
