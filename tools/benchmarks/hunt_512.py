"""A hunt over 512 simulated nodes with three faulty ones: its rounds, the time of its analysis, and the nodes it confirms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from collbench.errors import NEGATIVE
from collbench.plugins.hunt.protocol import CONFIRMED, Options
from collbench.plugins.hunt.strategy import hunt, promise
from tests.cli.command import run
from tests.plugins.hunt.made_up import MadeUp
from tools.benchmarks.figures import SECONDS, Figure, Outcome, timed
from tools.benchmarks.launches import LaunchFailed

NODES, MOST_ROUNDS, MOST_S = 512, 40, 10.0
METHODS = ("pairs", "groups")


def faulty(nodes: int) -> list[int]:
    """Return the faults: one node both ways, the sends of another, the receives of a third; each at half the rate."""
    return [nodes // 10, nodes // 5, nodes * 7 // 10]


def one(seed: int, method: str = "pairs", nodes: int = NODES) -> dict[str, Any]:
    """Return one hunt of a seed: its rounds, the estimate, the seconds of analysis, and the confirmed nodes."""
    first, second, third = faulty(nodes)
    made = MadeUp(nodes, seed).node(first).sender(second).receiver(third)
    options = Options(method=method, seed=seed)
    began = perf_counter()
    promised = promise(nodes, options)
    thinking = hunt(made.names, options)
    rounds, spent, ask = 0, perf_counter() - began, None
    began = perf_counter()
    try:
        ask = next(thinking)
        while True:
            spent += perf_counter() - began
            answer, rounds = made.answer(ask), rounds + 1
            began = perf_counter()
            ask = thinking.send(answer)
    except StopIteration as stop:
        verdict = stop.value
    named = sorted(place for each in verdict.of(CONFIRMED) for place in each.places)
    return {
        "method": method,
        "seed": seed,
        "rounds": rounds,
        "promised": promised,
        "analysis_s": spent + perf_counter() - began,
        "named": named,
    }


def launched(nodes: int = NODES) -> dict[str, Any]:
    """`collbench hunt` itself over as many virtual ranks, three of them slowed to half."""
    slowed = f"by=100% ranks={','.join(map(str, faulty(nodes)))}"
    line = ["hunt", "--backend", "simulated", "--ranks", str(nodes), "--size", "4K", "--window", "2", "--slowed", slowed, "--quiet"]
    with TemporaryDirectory() as folder:
        done = run(Path(folder), *line, "--out", "run", "--format", "json", timeout=300)
    if done.returncode != NEGATIVE:
        raise LaunchFailed(done.stderr[-400:])
    actual = json.loads(done.stdout)
    named = sorted(place for each in actual["suspects"] if each["state"] == CONFIRMED for place in each["places"])
    return {"method": "command", "rounds": actual["about"]["rounds"], "promised": actual["about"]["promised"], "named": named}


def measure(n: int = 10) -> Outcome:
    """n hunts by each method, seeded one after the other, and one by the command."""
    raw = [one(seed, method) for method in METHODS for seed in range(n)]
    figures = [figure for method in METHODS for figure in _figures(method, [each for each in raw if each["method"] == method])]
    command = launched()
    how = (
        f"{NODES} made-up nodes, of which one is slow both ways, one sends slowly and one receives slowly (half the rate), with the noise "
        f"of real ones; {n} seeds for each method. Rounds are those of the whole hunt, of disjoint pairs or groups measured at the same "
        "time; analysis is all that is not measuring. Command: `collbench hunt` over as many virtual ranks, three of them slowed to half."
    )
    return Outcome("hunt_512", how, [*figures, *_counts("command", [command])], [*raw, command])


def _figures(method: str, raw: Sequence[dict[str, Any]]) -> list[Figure]:
    rounds, exact = _counts(method, raw)
    return [rounds, timed(f"{method}: analysis of a hunt", (each["analysis_s"] for each in raw), SECONDS, below=MOST_S), exact]


def _counts(method: str, raw: Sequence[dict[str, Any]]) -> list[Figure]:
    most, promised = max(each["rounds"] for each in raw), max(each["promised"] for each in raw)
    exact, n = sum(each["named"] == faulty(NODES) for each in raw), len(raw)
    return [
        Figure(f"{method}: most rounds of a hunt", str(most), f"{promised} promised", f"≤ {MOST_ROUNDS}", most <= MOST_ROUNDS),
        Figure(f"{method}: exactly the faulty ones confirmed", f"{exact} of {n}", "", f"{n} of {n}", exact == n),
    ]
