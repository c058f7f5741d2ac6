"""All readers, and which one a file needs."""

from __future__ import annotations

from collections.abc import Sequence

from collbench.errors import UsageError
from collbench.results.importers.all_reduce_bench import ALL_REDUCE_BENCH
from collbench.results.importers.deepep import DEEPEP
from collbench.results.importers.fi_pingpong import FI_PINGPONG
from collbench.results.importers.gloo import GLOO
from collbench.results.importers.gpcnet import GPCNET
from collbench.results.importers.imb import IMB
from collbench.results.importers.mpigraph import MPIGRAPH
from collbench.results.importers.nccl_inspector import NCCL_INSPECTOR
from collbench.results.importers.nccl_tests import NCCL_TESTS
from collbench.results.importers.nccl_tests_json import NCCL_TESTS_JSON
from collbench.results.importers.nvbandwidth import NVBANDWIDTH, NVBANDWIDTH_JSON
from collbench.results.importers.osu import OSU
from collbench.results.importers.param import PARAM
from collbench.results.importers.peer import Reader
from collbench.results.importers.perftest import PERFTEST
from collbench.results.importers.pod_log import POD_LOG
from collbench.results.importers.ucx_perftest import UCX_PERFTEST
from collbench.results.importers.unread import unread_tool

# The marks of collbench's own rows first: what is between them may look like anything. Then JSON, then text by how distinct it is.
READERS: tuple[Reader, ...] = (
    POD_LOG, NCCL_TESTS_JSON, NCCL_INSPECTOR, NVBANDWIDTH_JSON, PARAM, NCCL_TESTS, OSU, IMB, PERFTEST, GLOO, NVBANDWIDTH, ALL_REDUCE_BENCH,
    DEEPEP, FI_PINGPONG, UCX_PERFTEST, MPIGRAPH, GPCNET,
)  # fmt: skip
HEAD = 400


def _reader_of(lines: Sequence[str]) -> Reader | None:
    """The first reader that knows these lines."""
    return next((reader for reader in READERS if reader.knows(lines[:HEAD])), None)


def reader_for(lines: Sequence[str], name: str | None) -> Reader:
    """The reader called `name`, or by what the lines look like. A long start is skipped in steps: NCCL's log may come before the table.

    Raises UsageError for an unknown name, and for lines of an unknown format.
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
    tool = unread_tool(lines[: 10 * HEAD])
    if tool is not None:
        raise UsageError(f"this looks like {tool}, which cannot be imported; formats that can: {names}")
    raise UsageError(f"the format is unknown: use --as FORMAT ({names})")
