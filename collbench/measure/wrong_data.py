"""Sentences on data that arrived wrong between places, for launches that measure rounds of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_TOLD = 4  # groups that are told one by one, and places that are named of each


def wrong_data(names: Sequence[str], met: Iterable[tuple[Sequence[int], int | None, str | None]], what: str) -> list[str]:
    """A sentence for each group with wrong data, of many the first, and how many more of `what` ("pairs") there are.

    met: (places, how many elements were not what was sent, what the first rank found), as measured; None: not compared, nothing found.
    """
    bad = [(_who(names, places), wrong, f" ({detail})" if detail else "") for places, wrong, detail in met if wrong]
    said = [f"wrong data {who}: {wrong} elements are not what was sent{detail}" for who, wrong, detail in bad[:_TOLD]]
    return [*said, *([f"wrong data in {len(bad) - _TOLD} more {what}"] if len(bad) > _TOLD else [])]


def _who(names: Sequence[str], places: Sequence[int]) -> str:
    """ "between a and b", "inside a", or of many places "among a, b, c, d and 60 more"."""
    known = [names[place] for place in places[:_TOLD]]
    if len(places) > _TOLD:
        return f"among {', '.join(known)} and {len(places) - _TOLD} more"
    return f"between {' and '.join(known)}" if len(places) > 1 else f"inside {known[0]}"
