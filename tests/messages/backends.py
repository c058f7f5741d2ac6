"""What a backend reports that cannot use the GPUs, or loses its partner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from collbench.backends.gpu_memory import ProcessPlace, trouble
from collbench.backends.socket import explain, gone

A, B = "0000:1b:00.0", "0000:43:00.0"
LINK = cast(Any, SimpleNamespace(peer="rank 1 (node1, pid 4201)", deadline_s=60))
LATE = -2  # sockets.c


def place(driven: str, visible: tuple[str, ...] = (A, B), **more: Any) -> ProcessPlace:
    return ProcessPlace("node1", visible, (driven,), **more)


MESSAGES = {
    "more ranks than GPUs": lambda: trouble([place(A)] * 3, 1),
    "process sees too few GPUs": lambda: trouble([place(A, (A,)), place(B, (B, "0000:52:00.0", "0000:9d:00.0"))], 2),
    "two ranks on one GPU": lambda: trouble([place(A), place(A)], 1),
    "GPU in exclusive mode": lambda: trouble([place(A, (A,), shares=True, alone=(A,))] * 2, 1),
    "partner closed the connection": lambda: gone(LINK.peer),
    "partner is silent": lambda: explain(LINK, LATE),
    "no route to the partner": lambda: explain(LINK, 113),
}
