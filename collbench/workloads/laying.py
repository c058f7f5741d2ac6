"""Which ranks of a job form groups, by the hosts that they run on."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.operations.groups import Groups
from collbench.workloads.exchange import Shape

_MOST_IN_TABLE = 8192  # half a gigabyte


def counted(number: int, what: str) -> str:
    """ "1 rank", "3 ranks"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def printable(text: str) -> str:
    """What was typed, for a sentence."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:40])


def need_ranks(shape: Shape, least: int, regime: str) -> None:
    """Raises UsageError where there are fewer ranks than `least`."""
    if shape.ranks < least:
        raise UsageError(f"{regime} over {counted(shape.ranks, 'rank')}: it needs {least} or more; start more with --ranks, srun or mpirun")


def need_table(shape: Shape, regime: str) -> None:
    """Raises UsageError for so many ranks that a table of what each sends to each other one would fill the memory."""
    if shape.ranks > _MOST_IN_TABLE:
        raise UsageError(
            f"{regime} over {counted(shape.ranks, 'rank')}: what each sends to each other one is kept in a table, and {_MOST_IN_TABLE:,} "
            "ranks are the most that it is made for; start fewer"
        )


def by_host(shape: Shape) -> Groups:
    """The ranks of each host in ascending order, the host of rank 0 first."""
    found: dict[int, list[int]] = {}
    for rank, host in enumerate(shape.hosts):
        found.setdefault(host, []).append(rank)
    return tuple(tuple(ranks) for ranks in found.values())


def host_after_host(shape: Shape) -> tuple[int, ...]:
    """All ranks, those of one host beside one another."""
    return tuple(rank for ranks in by_host(shape) for rank in ranks)


def ranks_per_host(shape: Shape) -> int | None:
    """How many ranks every host has; None where hosts differ."""
    sizes = {len(ranks) for ranks in by_host(shape)}
    return sizes.pop() if len(sizes) == 1 else None


def blocks(ranks: Sequence[int], size: int) -> Groups:
    """`size` neighbours each; `size` divides their number."""
    return tuple(tuple(ranks[at : at + size]) for at in range(0, len(ranks), size))


def crossing(groups: Groups, shape: Shape) -> bool:
    """Whether some group has ranks of several hosts."""
    return any(len({shape.hosts[rank] for rank in group}) > 1 for group in groups)


def everybody(shape: Shape) -> Groups:
    """One group of all."""
    return (tuple(range(shape.ranks)),)
