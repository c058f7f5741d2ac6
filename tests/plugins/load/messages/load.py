"""An operation under load."""

from __future__ import annotations

from collbench.plugins.load.interference import LoadInconclusive
from tests.messages import Message

MESSAGES: dict[str, Message] = {
    "load on shared cores": LoadInconclusive("cores", 8),
    "load with few blocks": LoadInconclusive("blocks", 3),
    "load with a wide interval": LoadInconclusive("wide", 8, 0.7, 1.3),
}
