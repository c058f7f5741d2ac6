"""What the tests of backends share."""

import pytest

from collbench.control.world import World
from collbench.launch.info import LaunchInfo


@pytest.fixture
def world():
    alone = World(LaunchInfo("local", 0, 1, 0, 1, "ipc://", "alone"), 5.0)
    yield alone
    alone.close()
