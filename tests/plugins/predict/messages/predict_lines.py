"""Usage errors of `gate`, which name its option, each with the command line that ends so."""

from __future__ import annotations

from tests.messages import Message
from tests.messages.cli import FILES, typed

LINES = """\
gate
gate --baseline base
"""
MESSAGES: dict[str, Message] = {line: typed(line, FILES) for line in LINES.splitlines()}
