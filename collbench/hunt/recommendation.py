"""What to do about it: recommendation.json, with a stable code for each kind of fault and the exact line that drains a node."""

from __future__ import annotations

CODES = {
    "node": "CB6101",
    "sender": "CB6102",
    "receiver": "CB6103",
    "latency": "CB6104",
    "path": "CB6105",
    "inside": "CB6106",
    "scale": "CB6107",
}
