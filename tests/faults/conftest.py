"""Runs in the middle, of which something is about to go wrong."""

import os
import signal
from contextlib import suppress

import pytest

from tests.cli.command import running
from tests.faults.launch import Launch


@pytest.fixture
def launch(tmp_path):
    """Start a run; processes that remain when the test ends are killed."""
    yield lambda *argv, **options: Launch(tmp_path, *argv, **options)
    for pid in running(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
