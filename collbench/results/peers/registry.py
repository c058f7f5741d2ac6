"""All readers, and which one a file needs."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.results.peers.gloo import GLOO
from collbench.results.peers.imb import IMB
from collbench.results.peers.nccl_tests import NCCL_TESTS
from collbench.results.peers.nccl_tests_json import NCCL_TESTS_JSON
from collbench.results.peers.osu import OSU
from collbench.results.peers.param import PARAM
from collbench.results.peers.peer import Reader
from collbench.results.peers.perftest import PERFTEST
from collbench.results.peers.pod_log import POD_LOG

# The marks of our own rows first: what stands between them may look like anything.
READERS: tuple[Reader, ...] = (POD_LOG, NCCL_TESTS_JSON, PARAM, NCCL_TESTS, OSU, IMB, PERFTEST, GLOO)
HEAD = 400


def _reader_of(lines: Sequence[str]) -> Reader | None:
    """The first reader that knows these lines; None: nobody does."""
    return next((reader for reader in READERS if reader.knows(lines[:HEAD])), None)


def reader_for(lines: Sequence[str], name: str | None) -> Reader:
    """The reader called `name`, or by what the lines look like. A long start is skipped in steps: NCCL's log may stand before the table.

    Raises UsageError for an unknown name, and for lines that nobody knows.
    """
    names = ", ".join(reader.name for reader in READERS)
    if name is not None:
        found = next((reader for reader in READERS if reader.name == name), None)
        if found is None:
            raise UsageError(f"--as '{name[:40]}' is unknown: choose from {names}")
        return found
    for start in range(0, max(1, len(lines)), HEAD):
        if (found := _reader_of(lines[start : start + HEAD])) is not None:
            return found
    raise UsageError(f"none of its lines is of a format that is known: say --as FORMAT ({names})")
