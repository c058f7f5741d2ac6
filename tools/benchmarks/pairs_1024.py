"""All pairs of 1,024 simulated ranks: the schedule, the analysis and the slow ranks and pairs, with the peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from time import perf_counter
from typing import Any

import numpy as np

from collbench.operations.groups import schedule
from collbench.plugins.hunt.pairs import PairEffects, PairFinding
from collbench.plugins.hunt.records import PairMatrix, PairRound, matrix_of
from tests.plugins.hunt.pair_matrices import suspects
from tools.benchmarks.figures import MEBIBYTES, SECONDS, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed
from tools.benchmarks.ranks import peak_bytes

RANKS, MOST_S, MOST_BYTES = 1024, 20.0, 10**9
SIZE, RATE, LATENCY_S, NOISE = 1 << 20, 10e9, 20e-6, 0.01


def slow(ranks: int) -> list[list[Any]]:
    """Return the faults: a rank, the sends of another, and a pair one way."""
    return [["node", ranks // 10], ["sender", ranks // 5], ["pair", ranks * 3 // 10, ranks * 4 // 10]]


def rounds(ranks: int, drawn: np.random.Generator) -> list[PairRound]:
    """Return the figures of a round-robin schedule; slow ranks and pairs have half the rate."""
    return [_round(number, np.array(pairs), ranks, drawn) for number, pairs in enumerate(schedule(ranks).rounds())]


def second_look(pairs: list[tuple[int, int]], ranks: int, drawn: np.random.Generator) -> list[PairRound]:
    """Return the figures of the suspects' pairs, measured again one by one."""
    return [_round(number, np.array([pair]), ranks, drawn) for number, pair in enumerate(pairs)]


def named(measured: list[PairRound], ranks: int, drawn: np.random.Generator) -> tuple[PairMatrix, list[PairFinding]]:
    """Return the matrix and its slow ranks and pairs, after the suspects were measured again."""
    about = {"places": [f"rank {rank}" for rank in range(ranks)], "size_bytes": SIZE, "latency_size_bytes": 8}
    again = suspects(matrix_of(about, measured))
    matrix = matrix_of(about, [*measured, *second_look(again, ranks, drawn)])
    return matrix, PairEffects(matrix, again).findings()


def one(ranks: int = RANKS) -> dict[str, Any]:
    """Return the seconds of the parts, the peak memory of this process in bytes, and the names."""
    drawn, start = np.random.default_rng(0), perf_counter()
    pairs = sum(len(each) for each in schedule(ranks).rounds())
    scheduled = perf_counter()
    measured = rounds(ranks, drawn)
    began = perf_counter()
    _, found = named(measured, ranks, drawn)
    ended = perf_counter()
    return {
        "pairs": pairs, "schedule_s": scheduled - start, "analysis_s": ended - began, "all_s": scheduled - start + ended - began,
        "peak_bytes": peak_bytes(), "named": [[each.kind, *each.places] for each in found],
    }  # fmt: skip


def measure(n: int = 6) -> Outcome:
    """n times, each in a process of its own."""
    raw = [_in_a_process() for _ in range(n)]
    exact = sum(each["named"] == slow(RANKS) for each in raw)
    figures = [
        timed("schedule, analysis and naming", (each["all_s"] for each in raw), SECONDS, below=MOST_S),
        timed("of it: the schedule", (each["schedule_s"] for each in raw), SECONDS),
        timed("peak memory, with the measured rounds", (each["peak_bytes"] for each in raw), MEBIBYTES, below=MOST_BYTES),
        Figure("exactly those named that are slow", f"{exact} of {n}", "", f"{n} of {n}", exact == n),
    ]
    how = (
        f"{raw[0]['pairs']:,} pairs of {RANKS:,} made-up ranks, of which one is slow, one sends slowly and one pair is slow one way: the "
        "schedule, the matrix of its rounds, the suspects, the matrix with their second figures, and the names. Making the figures up is "
        "not in the time."
    )
    return Outcome("pairs_1024", how, figures, raw)


def _round(number: int, pairs: np.ndarray[Any, Any], ranks: int, drawn: np.random.Generator) -> PairRound:
    forward, backward = (SIZE / (RATE * _ratio(ends, ranks)) * _noise(len(pairs), drawn) for ends in (pairs, pairs[:, ::-1]))
    times = (LATENCY_S * _noise(len(pairs), drawn), forward, backward)
    latency, there, back = (tuple(each.tolist()) for each in times)
    low, there_ci, back_ci = (tuple(zip((each * 0.99).tolist(), (each * 1.01).tolist(), strict=True)) for each in times)
    none = (None,) * len(pairs)
    met = tuple((int(a), int(b)) for a, b in pairs)
    return PairRound(number, met, latency, low, there, there_ci, back, back_ci, (0,) * len(pairs), none)


def _ratio(ends: np.ndarray[Any, Any], ranks: int) -> np.ndarray[Any, Any]:
    """What each directed pair reaches."""
    (_, both), (_, sender), (_, *pair) = slow(ranks)
    return np.where((ends == both).any(axis=1) | (ends[:, 0] == sender) | (ends == pair).all(axis=1), 0.5, 1.0)


def _noise(many: int, drawn: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.exp(NOISE / np.sqrt(2) * drawn.standard_t(4, many))


def _in_a_process() -> dict[str, Any]:
    code = "import json; from tools.benchmarks.pairs_1024 import one; print(json.dumps(one()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise LaunchFailed(done.stderr[-400:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found
