"""Differences between the traces of ranks."""

from __future__ import annotations

from collbench.plugins.traces.matching import DifferingField, TraceDifference

MESSAGES = {
    "missing collective": TraceDifference("0", 7, DifferingField.MISSING, (0, 1, 2), ("allreduce", None, "allreduce"), "allreduce", 7, 0),
    "other size": TraceDifference("mesh_tp", 7, DifferingField.SIZE, (0, 1, 2), (4096, 4096, 8192), "allgather", 7, 0),
    "other operation": TraceDifference("0", 7, DifferingField.OPERATION, (0, 1, 2), ("broadcast", "allreduce", None), "allreduce", 7, 0),
    "other order": TraceDifference("0", 7, DifferingField.ORDER, (0, 1, 2), (7, 8, 7), "allreduce", 7, 0),
    "other root": TraceDifference("0", 7, DifferingField.ROOT, (0, 1), (0, 1), "broadcast", 7, 0),
    "message without a receive": TraceDifference("0", 3, DifferingField.MISSING, (2, 5), ("send", None), "send", 3, 0),
    "message of another size": TraceDifference("0", 3, DifferingField.SIZE, (2, 5), (1024, 512), "send", 3, 0),
}
