"""Backends that fail in a real launch: installed by their entry points in test_check.py. Times and data are the simulated ones."""

import os
import signal
import time
from typing import Any

from collbench.backends import simulated
from collbench.backends.simulated import SimulatedBackend
from collbench.operations.program import Program


class CorruptingBackend(SimulatedBackend):
    """Changes the first element that rank 0 receives."""

    name = "corrupting"

    def bind(self, operation: Any, case: Any, group: Any, buffers: Any) -> Program:
        whole = simulated.move

        def move(operation: Any, buffers: Any, slot: int) -> None:
            whole(operation, buffers, slot)
            buffers.recv(0, slot)[:1] += 1

        simulated.move = move
        return super().bind(operation, case, group, buffers)


class KilledBackend(SimulatedBackend):
    """Kills its process in the first case."""

    name = "killed"

    def bind(self, operation: Any, case: Any, group: Any, buffers: Any) -> Program:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class HangingBackend(SimulatedBackend):
    """Never returns from its first case."""

    name = "hanging"

    def bind(self, operation: Any, case: Any, group: Any, buffers: Any) -> Program:
        time.sleep(600)
        raise AssertionError
