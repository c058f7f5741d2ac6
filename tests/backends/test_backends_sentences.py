"""What a backend reports that cannot use the GPUs, or loses its partner."""

from types import SimpleNamespace

import pytest

from collbench.backends.gpu_memory import ProcessPlace, trouble
from collbench.backends.socket import explain, gone
from tests.helpers import said

A, B = "0000:1b:00.0", "0000:43:00.0"
LINK = SimpleNamespace(peer="rank 1 (node1, pid 4201)", deadline_s=60)
LATE = -2  # sockets.c


def place(driven, visible=(A, B), **more):
    return ProcessPlace("node1", visible, (driven,), **more)


WORDS = {
    "more ranks than GPUs": (lambda: trouble([place(A)] * 3, 1),
        "more ranks than GPUs: 3 ranks on host node1, which shows them 2 GPUs: start one rank per GPU (--ranks, or the launcher's "
        "tasks per node), or let all of them see more (CUDA_VISIBLE_DEVICES)"),
    "process sees too few GPUs": (lambda: trouble([place(A, (A,)), place(B, (B, "0000:52:00.0", "0000:9d:00.0"))], 2),
        "a process on host node1 drives 2 ranks and sees 1 GPU: let it see as many (CUDA_VISIBLE_DEVICES, srun --gpus-per-task)"),
    "two ranks on one GPU": (lambda: trouble([place(A), place(A)], 1),
        "ranks 0 and 1 drive the same GPU, 0000:1b:00.0 of host node1, and NCCL takes one rank per GPU: let each process see its own "
        "(srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES per rank), or all of them see all GPUs"),
    "GPU in exclusive mode": (lambda: trouble([place(A, (A,), shares=True, alone=(A,))] * 2, 1),
        "ranks 0 and 1 share GPU 0000:1b:00.0 of host node1, which is in exclusive mode and takes one process only: set it to the "
        "default mode (nvidia-smi -i 0000:1b:00.0 -c 0), or give each rank a GPU of its own"),
    "partner closed the connection": (lambda: gone(LINK.peer),
        "rank 1 (node1, pid 4201) closed the connection: see the error of that rank"),
    "partner is silent": (lambda: explain(LINK, LATE),
        "no byte went to or came from rank 1 (node1, pid 4201) for 60 s: stopped, or the path drops packets; or raise --timeout"),
    "no route to the partner": (lambda: explain(LINK, 113), "No route to host, between here and rank 1 (node1, pid 4201)"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "text"), WORDS.values(), ids=WORDS)
def test_the_words_of_a_message(call, text):
    assert said(call) == text
