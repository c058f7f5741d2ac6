"""UCC and ZeroMQ when a rank dies or stops: the other one names it in time, and everything measured before is on the disk."""

from collections.abc import Callable

import pytest

from collbench.results.reader import Run
from tests.conftest import needs_ucc, sample
from tests.faults import conftest
from tests.faults.launch import Launch
from tests.faults.test_backends import LONG
from tests.plugins.libraries.stack import OWN

launch = conftest.launch  # a fixture
ZMQ, UCC = ("p2p", "--backend", "zmq"), ("allreduce", "--backend", "ucc")

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize("fault", [Launch.ends_after_a_kill_of, Launch.ends_after_a_stop_of], ids=["killed", "stopped"])
@pytest.mark.parametrize("victim", sample([0, 1], 1))
def test_a_rank_on_zmq_is_killed_or_stopped(victim: int, fault: Callable[[Launch, int], Run], launch: Callable[..., Launch]) -> None:
    assert fault(launch(*ZMQ, *LONG), victim).rows


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
