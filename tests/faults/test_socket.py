"""Plain TCP when a rank dies or stops: the other one names it in time, and everything measured before is on the disk."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S, Launch

LONG = ("p2p", "--backend", "socket", "--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(120)]


@pytest.mark.parametrize(("victim", "streams"), sample([(0, "1"), (1, "1"), (0, "3"), (1, "3")], 1))
def test_a_rank_is_killed(victim: int, streams: str, launch: Callable[..., Launch]) -> None:
    one = launch(*LONG, "--streams", streams)
    os.kill(one.pids[victim], signal.SIGKILL)
    assert one.end(within_s=TIMEOUT_S + 12) == 4
    assert f"collbench: rank {victim} (pid {one.pids[victim]}) was killed by signal 9 (SIGKILL)" in one.said
    assert "Traceback" not in one.said
    one.stored()
    one.everybody_left()


@pytest.mark.parametrize(("victim", "streams"), sample([(0, "1"), (1, "1"), (0, "3"), (1, "3")], 1))
def test_a_rank_is_stopped(victim: int, streams: str, launch: Callable[..., Launch]) -> None:
    one = launch(*LONG, "--streams", streams)
    os.kill(one.pids[victim], signal.SIGSTOP)
    assert one.end(within_s=2 * TIMEOUT_S + 15) == 4
    assert re.search(rf"rank {victim}\b.*(did not answer|is stopped)", one.said), one.said
    assert "Traceback" not in one.said
    one.stored()
    one.everybody_left()
