"""Facts that all packages share."""

from __future__ import annotations

from collbench.reason import Text

MESSAGES = {"text": Text("a reason from a plug-in")}
