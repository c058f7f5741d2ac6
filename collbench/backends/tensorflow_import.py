"""Imports TensorFlow without its chatter: what it says before its log can be set goes through a filter, its errors stay."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from collbench.backends.stacks import loaded

# Written before TensorFlow has a log that could be told to be still: remarks (I), warnings (W), and an error for there being no GPU.
_CHATTER = r"^([IW][0-9]{4} [0-9:.]+ |WARNING: All log messages before absl::|.* failed call to cuInit: )"
_REMEDY = "install it anew, pip install --force-reinstall -c constraints.txt 'collbench[tensorflow]', best in an environment of its own"


def load_tensorflow() -> Any:
    """The module. Raises UsageError with the reason of an installation that is there and broken, whatever it raises."""
    # Failed operations raise, and what is fatal is written in any case: only what repeats the one or is no fault is left out by 3.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _filtered():
        return loaded("tensorflow", _import, _REMEDY)


def _import() -> Any:
    tensorflow = import_module("tensorflow")
    tensorflow.config.list_physical_devices()  # looks for CUDA, and says so
    return tensorflow


@contextmanager
def _filtered() -> Iterator[None]:
    """Inside, stderr goes through a process that outlives this one: the last words of one that ends in here are told, too."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        still = subprocess.Popen(["grep", "-Ev", "--line-buffered", _CHATTER], stdin=subprocess.PIPE, stdout=kept)
    except OSError:  # no grep: with its chatter, then
        os.close(kept)
        yield
        return
    assert still.stdin is not None
    os.dup2(still.stdin.fileno(), 2)
    still.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        still.wait()
