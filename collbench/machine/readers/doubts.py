"""Doubts about a source, as many as people read."""

from __future__ import annotations

from collections.abc import Sequence

_MOST, _MOST_NAMED = 8, 4


def few(doubts: Sequence[str]) -> tuple[str, ...]:
    """The first doubts of one kind, and how many more there are: a damaged file of a big machine gives thousands."""
    more = len(doubts) - _MOST
    return (
        (*doubts[:_MOST], f"{more} more doubts of this kind: the source is damaged, or not of one machine") if more > 0 else tuple(doubts)
    )


def several(parts: Sequence[str]) -> str:
    """Parts that share a doubt, as many as people read: "a, b, c, d and 12 more"."""
    more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return ", ".join(parts[:_MOST_NAMED]) + more
