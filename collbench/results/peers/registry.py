"""All readers, and which one a file needs."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.results.peers.peer import Reader

READERS: tuple[Reader, ...] = ()
HEAD = 400


def reader_of(lines: Sequence[str]) -> Reader | None:
    """The first reader that knows these lines; None: nobody does."""
    return next((reader for reader in READERS if reader.knows(lines[:HEAD])), None)
