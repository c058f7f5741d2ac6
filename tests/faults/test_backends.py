"""Further backends when a rank dies or stops: the other one names it in time, and everything measured before is on the disk."""

import pytest

from tests.conftest import sample
from tests.faults.launch import TIMEOUT_S, Launch

LONG = ("--sizes", "8,1K,1K-64M", "-n", "20", "--out", "run", "--timeout", str(TIMEOUT_S))
SOCKET = [("p2p", "--backend", "socket", "--streams", streams) for streams in ("1", "3")]

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.parametrize("fault", [Launch.ends_after_a_kill_of, Launch.ends_after_a_stop_of], ids=["killed", "stopped"])
@pytest.mark.parametrize(
    ("words", "victim"),
    sample([(words, victim) for words in SOCKET for victim in (0, 1)], 1),
    ids=lambda value: " ".join(value[2:]) if isinstance(value, tuple) else None,
)
def test_a_rank_is_killed_or_stopped(words, victim, fault, launch):
    assert fault(launch(*words, *LONG), victim).rows
