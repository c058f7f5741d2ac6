"""Transfers of blocks."""

from __future__ import annotations

from collbench.plugins.kv.records import CostsInconclusive
from tests.messages import Message

MESSAGES: dict[str, Message] = {
    "kv with one size": CostsInconclusive("mpi-type", "grid"),
    "kv with few rows": CostsInconclusive("packed", "points"),
}
