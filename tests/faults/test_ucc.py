"""UCC when a rank dies or stops: the other one is not left waiting, and everything measured before is on the disk."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S, Launch
from tests.plugins.stack import OWN, needs_ucc

LONG = ("allreduce", "--backend", "ucc", "--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(120), needs_ucc]


@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_rank_is_killed(victim: int, launch: Callable[..., Launch]) -> None:
    one = launch(*LONG, env=OWN["ucc"])
    os.kill(one.pids[victim], signal.SIGKILL)
    assert one.end(within_s=TIMEOUT_S + 12) == 4
    assert f"collbench: rank {victim} (pid {one.pids[victim]}) was killed by signal 9 (SIGKILL)" in one.said
    assert "Traceback" not in one.said
    one.stored()
    one.everybody_left()


@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_rank_is_stopped(victim: int, launch: Callable[..., Launch]) -> None:
    one = launch(*LONG, "--max-time", "2", env=OWN["ucc"])
    os.kill(one.pids[victim], signal.SIGSTOP)
    assert one.end(within_s=2 * TIMEOUT_S + 15) == 4
    assert re.search(rf"rank {victim}\b.*(did not answer|is stopped)", one.said), one.said
    assert "Traceback" not in one.said
    one.stored()
    one.everybody_left()


def test_sigterm_is_reported_by_the_code(launch: Callable[..., Launch]) -> None:
    one = launch(*LONG, env=OWN["ucc"])
    (parent,) = Path(f"/proc/{one.parent}/task/{one.parent}/children").read_text().split()  # of the `timeout` in front
    os.kill(int(parent), signal.SIGTERM)
    assert one.end(within_s=15) == 143
    assert "Traceback" not in one.said
    one.stored()
    one.everybody_left()
