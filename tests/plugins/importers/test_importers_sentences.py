"""Notes on imported tables, and errors of `collbench import`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collbench.plugins.importers.importer import UserInput, lines_of
from collbench.plugins.importers.rows import operation_named, ranks_and_nodes
from collbench.plugins.importers.store import READERS, reader_for
from tests.cli.test_cli_sentences import typed
from tests.helpers import Call, said


def _read(name: str, text: str, ranks: int | None = None, operation: str | None = None) -> Callable[[], object]:
    """Return a function that reads the text as this format, which fails."""
    reader = next(each for each in READERS if each.name == name)
    return lambda: reader.read(text.splitlines(), UserInput(ranks=ranks, operation=operation)).runs


WORDS: dict[str, tuple[Call, str]] = {
    "compressed": (lambda: lines_of(b"\x1f\x8b"), "the file is compressed: unpack it first (gunzip)"),
    "unknown format": (lambda: reader_for(["1 2 3"], None),
        "unknown format: use --as FORMAT (log, nccl-tests-json, rccl-tests-file, nccl-inspector, nvbandwidth-json, param, "
        "nccl-tests, osu, imb, perftest, gloo, nvbandwidth, all-reduce-bench, deepep, fi-pingpong, ucx-perftest, mpigraph, gpcnet)"),
    "unknown --as": (lambda: reader_for([], "word"),
        "unknown format --as 'word': choose from log, nccl-tests-json, rccl-tests-file, nccl-inspector, nvbandwidth-json, param, "
        "nccl-tests, osu, imb, perftest, gloo, nvbandwidth, all-reduce-bench, deepep, fi-pingpong, ucx-perftest, mpigraph, gpcnet"),
    "not supported": (lambda: reader_for(["sockperf: x"], None),
        "output of sockperf is not supported: supported formats are log, nccl-tests-json, rccl-tests-file, nccl-inspector, "
        "nvbandwidth-json, param, nccl-tests, osu, imb, perftest, gloo, nvbandwidth, all-reduce-bench, deepep, fi-pingpong, "
        "ucx-perftest, mpigraph, gpcnet"),
    "unknown operation": (lambda: operation_named("sum"),
        "unknown --operation 'sum': choose from allgather, allreduce, alltoallv, alltoall, barrier, broadcast, gather, scatter, "
        "hypercube, init_create, init_first, init_session, init_halves, init_alternate, init_nodes, init_reform, neighbor_allgather, "
        "neighbor_alltoall, accumulate, get_latency, get_bandwidth, put_latency, put_bandwidth, p2p_bandwidth, p2p_bidirectional, "
        "p2p_latency, multipair_bandwidth, multipair_bidirectional, reduce, reducescatter, scan, exscan, sendrecv, allgatherv, "
        "gatherv, scatterv, reducescatterv"),
    "unknown ranks": (lambda: ranks_and_nodes(UserInput(), None, None, "the table at line 5"),
        "the table at line 5: the number of ranks is unknown: use --ranks N"),
    "too many nodes": (lambda: ranks_and_nodes(UserInput(nodes=4), 2, None, "the table at line 5"),
        "the table at line 5: 2 ranks cannot be on 4 nodes; check --ranks and --nodes"),
    "nccl-tests: no table": (_read("nccl-tests", "x\n"),
        "no line of nccl-tests' table with a size and a time found: use the whole output of the program"),
    "nccl-tests: output of collbench": (_read("nccl-tests", "# collbench version 0.1\n"),
        "line 1 is output of collbench: use `collbench report` with the run folder, which has more data"),
    "nccl-tests: invalid JSON": (_read("nccl-tests-json", "{"),
        "the file is not JSON (JSONDecodeError): the program was stopped while it wrote the file; import its text output instead"),
    "nccl-tests: JSON of another version": (_read("nccl-tests-json", '{"version": 9}'),
        "unknown version 9 of nccl-tests' JSON: versions up to 3 are supported"),
    "nvbandwidth: no figure": (_read("nvbandwidth", "x\n"), "no test case found: use the output of nvbandwidth from its title on"),
    "mpigraph: no start": (_read("mpigraph", "x\n"), "no matrix below a line 'START mpiGraph' found: use the whole output"),
    "gpcnet: no table": (_read("gpcnet", "x\n"),
        "no table with figures found: GPCNeT was stopped before its first test, or rejected the number of nodes"),
    "perftest: ranks": (_read("perftest", "x\n", ranks=4), "--ranks 4 is not valid for perftest, which has 2 ranks: omit --ranks"),
    "osu: no results": (_read("osu", "x\n"),
        "no results of OSU's tests found: use the output from its title on, with the lines of figures"),
    "deepep: no results": (_read("deepep", "x\n"), "no line has a rate and a time: use the output of a newer version of the tests"),
    "log: no rows": (_read("log", "----- collbench: rows begin -----\n"),
        "no rows between the marks: use the whole log of rank 0's pod, of a command that measures collectives"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call: Call, text: str) -> None:
    assert said(call) == text


TABLE = "# Collective test starting: all_reduce_perf_mpi\n  1073741824  268435456  float  sum  -1  5000.00  {}  0\n"
UNKNOWN_RANKS = f"{TABLE.format('214.75  375.81')}# Out of bounds values : 0 OK\n{TABLE.format('1.05  2.09')}"


def test_a_table_that_cannot_be_imported_with_strict() -> None:
    assert said(typed("import two.log --out out --strict", {"two.log": UNKNOWN_RANKS})) == (
        "two.log cannot be imported: the table at line 5 (busbw / algbw allows 85 or more): the number of ranks is unknown: use "
        "--ranks N (with --strict no table is skipped; 1 cannot be read)"
    )
