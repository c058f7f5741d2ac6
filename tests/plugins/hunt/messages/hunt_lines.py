"""Usage errors of `pairs` and `hunt`, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

LINES = """\
hunts
pairs --size 1K,2K
pairs --backend mpi,gloo
pairs --backend simulated --concurrent 0
hunt --max-drain x
pairs --backend simulated --ranks 4 --size 0
pairs --backend simulated --ranks 4 --streams 2
pairs --tools iperf
hunt --backend mpi,gloo
hunt --rounds 0
hunt --size 0
"""
MESSAGES: dict[str, Message] = {line: typed(line, FILES) for line in LINES.splitlines()}
