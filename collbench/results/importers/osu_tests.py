"""The OSU Micro-Benchmarks' tests by the title in their output, and what each means in our words (read in the source of 7.4).

Sizes: allreduce, reduce, broadcast and reduce-scatter print what a rank holds; all others print one rank's part, of which our size
has one per rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Measure = Literal["latency", "bandwidth"]


@dataclass(frozen=True)
class Test:
    """One of OSU's programs.

    program     its name: "osu_allreduce"
    operation   in our words; of what we do not have, a name of its own
    like        the operation of ours whose bus factor holds; None: none does
    measure     whether its figure is a time or a rate
    parts       whether the size it prints is one rank's part, of which there is one for each rank
    even        whether the ranks' parts could differ, and are all alike
    pairs       "one", "many" (their number is told, or half of the ranks), or "" for a collective
    both_ways   whether the rate counts both directions
    """

    program: str
    operation: str
    like: str | None
    measure: Measure = "latency"
    parts: bool = False
    even: bool = False
    pairs: Literal["", "one", "many"] = ""
    both_ways: bool = False

    @property
    def reduces(self) -> bool:
        """Whether elements are added."""
        return self.like in ("allreduce", "reduce", "reducescatter")

    @property
    def rooted(self) -> bool:
        """Whether one rank has another part than the others."""
        return self.like in ("broadcast", "reduce", "gather", "scatter")


def _collective(mpi: str, operation: str, like: str | None = None, *, parts: bool = False, even: bool = False) -> Test:
    return Test(f"osu_{mpi}", operation, like or operation, parts=parts, even=even)


_COLLECTIVES = {
    "allreduce": _collective("allreduce", "allreduce"),
    "reduce": _collective("reduce", "reduce"),
    "broadcast": _collective("bcast", "broadcast"),
    "reduce_scatter": _collective("reduce_scatter", "reducescatter", even=True),
    "reduce_scatter_block": _collective("reduce_scatter_block", "reducescatter"),
    "barrier": _collective("barrier", "barrier"),
    "allgather": _collective("allgather", "allgather", parts=True),
    "allgatherv": _collective("allgatherv", "allgatherv", "allgather", parts=True, even=True),
    "alltoall": _collective("alltoall", "alltoall", parts=True),
    "alltoallv": _collective("alltoallv", "alltoallv", parts=True, even=True),
    "alltoallw": _collective("alltoallw", "alltoallw", "alltoall", parts=True, even=True),
    "gather": _collective("gather", "gather", parts=True),
    "gatherv": _collective("gatherv", "gatherv", "gather", parts=True, even=True),
    "scatter": _collective("scatter", "scatter", parts=True),
    "scatterv": _collective("scatterv", "scatterv", "scatter", parts=True, even=True),
}
_PAIRS = {
    "latency": Test("osu_latency", "p2p_latency", "p2p_latency", pairs="one"),
    "multi-threaded latency": Test("osu_latency_mt", "p2p_latency_threads", "p2p_latency", pairs="one"),
    "multi-process latency": Test("osu_latency_mp", "p2p_latency_processes", "p2p_latency", pairs="one"),
    "multi latency": Test("osu_multi_lat", "p2p_latency", "p2p_latency", pairs="many"),
    "bandwidth": Test("osu_bw", "p2p_bandwidth", "p2p_bandwidth", "bandwidth", pairs="one"),
    "bi-directional bandwidth": Test("osu_bibw", "p2p_bidirectional", "p2p_bidirectional", "bandwidth", pairs="one", both_ways=True),
    "multiple bandwidth / message rate": Test("osu_mbw_mr", "p2p_bandwidth", "p2p_bandwidth", "bandwidth", pairs="many"),
}
_PERSISTENT = re.compile(r"\s+persistent\b")
_LONGEST = 48


def test_of(title: str, neighbours: bool = False) -> Test:
    """The test whose output says "OSU MPI <title> Test"; a title that nobody knows becomes an operation of its own, without a bus.

    neighbours: the output tells of a graph of ranks; one test's title does not say that it is one of neighbours.
    """
    words = " ".join(title.lower().split())
    persistent = _PERSISTENT.search(words) is not None
    plain = _PERSISTENT.sub("", words)
    if plain in _PAIRS:
        return _named(_PAIRS[plain], "", "_persistent" if persistent else "")
    return _of_collective(plain, persistent, neighbours) or _unknown(words)


def _of_collective(words: str, persistent: bool, graph: bool) -> Test | None:
    started = words.startswith("non-blocking ")
    neighbours = graph or "neighborhood " in words
    name = words.removeprefix("non-blocking ").removeprefix("neighborhood ").removesuffix(" latency").removesuffix(" personalized exchange")
    test = _COLLECTIVES.get(name.replace("-", ""))
    if test is None:
        return None
    before = f"{'i' if started else ''}{'neighbor_' if neighbours else ''}"
    named = _named(test, before, "_persistent" if persistent else "")
    if neighbours:  # who is a neighbour, and so how much is moved, is not told
        return Test(named.program, named.operation, None)
    return named


def _named(test: Test, before: str, after: str) -> Test:
    """The test with something before and after its name; it moves what it moved."""
    program = test.program.removeprefix("osu_")
    return Test(
        f"osu_{before}{program}{after}", f"{before}{test.operation}{after}", test.like, test.measure,
        test.parts, test.even, test.pairs, test.both_ways,
    )  # fmt: skip


def _unknown(words: str) -> Test:
    name = re.sub(r"[^a-z0-9]+", "_", words).strip("_")[:_LONGEST] or "unnamed"
    rate = "bandwidth" in words
    return Test(f"osu {name}", name, None, "bandwidth" if rate else "latency", pairs="one", both_ways=rate and words.startswith("bi"))
