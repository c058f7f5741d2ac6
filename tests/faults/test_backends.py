"""Further backends when a rank dies or stops: the other one names it in time, and everything measured before is on the disk."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from collbench.results.reader import Run
from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S, Launch
from tests.plugins.libraries.stack import OWN, needs_ucc

LONG = ("--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))
SOCKET = [("p2p", "--backend", "socket", "--streams", streams) for streams in ("1", "3")]
ZMQ, UCC = ("p2p", "--backend", "zmq"), ("allreduce", "--backend", "ucc")

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(120)]


@pytest.mark.parametrize("fault", [Launch.ends_after_a_kill_of, Launch.ends_after_a_stop_of], ids=["killed", "stopped"])
@pytest.mark.parametrize(
    ("words", "victim"),
    [*sample([(words, victim) for words in SOCKET for victim in (0, 1)], 1), *sample([(ZMQ, 0), (ZMQ, 1)], 1)],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, tuple) else None,
)
def test_a_rank_is_killed_or_stopped(
    words: tuple[str, ...], victim: int, fault: Callable[[Launch, int], Run], launch: Callable[..., Launch]
) -> None:
    assert fault(launch(*words, *LONG), victim).rows


@needs_ucc
@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_rank_on_ucc_is_killed(victim: int, launch: Callable[..., Launch]) -> None:
    assert launch(*UCC, *LONG, env=OWN["ucc"]).ends_after_a_kill_of(victim).rows


@needs_ucc
@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_rank_on_ucc_is_stopped(victim: int, launch: Callable[..., Launch]) -> None:
    assert launch(*UCC, *LONG, "--max-time", "2", env=OWN["ucc"]).ends_after_a_stop_of(victim).rows


@needs_ucc
def test_sigterm_of_a_run_on_ucc(launch: Callable[..., Launch]) -> None:
    assert launch(*UCC, *LONG, env=OWN["ucc"]).ends_after_sigterm().rows
