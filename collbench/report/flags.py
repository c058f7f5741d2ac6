"""What the words in a row's `flags` mean, once, for every output."""

from __future__ import annotations

from collections.abc import Iterable

FLAGS = {
    "oversubscribed": "more ranks than cores: waiting ranks hold the core that working ones need, so no percentage; use fewer, or Open MPI",
    "python_loop": "timed by a Python loop, since the native one is not built: small sizes read up to 0.5 µs too slow",
    "above_bound": "faster than the link allows: the bytes took another path (shared memory?), or the link's rate was read wrongly",
    "few_samples": "fewer than 60 samples within the time given: the interval is wide; raise --max-time",
    "target_missed": "the interval is wider than asked for: raise --max-time or -n, or accept a larger --precision",
    "warmup_unsettled": "warm-up ended at its limit, not because the times had settled: raise -w",
    "size_rounded": "the size asked for is no multiple of the element size times the parts: rounded down",
    "simulated": "computed by a seeded model, not measured on this machine",
    "pairs_at_once": "all pairs ran at the same time and shared what lies between them",
}


def printable(text: str) -> str:
    """`text` without anything that could move a cursor or reverse a line: such characters become "?"."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "?" for letter in text)


def explain(flags: Iterable[str]) -> list[str]:
    """One line for each flag that occurs and has a meaning here, in the order of FLAGS."""
    present = set(flags)
    return [f"{flag}: {meaning}" for flag, meaning in FLAGS.items() if flag in present]
