"""Usage errors of `probe --measure`, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

LINES = """\
probe --tools iperf3
probe --measure --format matrix
probe --measure --max-time 8 --timeout 10
probe --measure --tools iperf
"""
MESSAGES: dict[str, Message] = {line: typed(line, FILES) for line in LINES.splitlines()}
