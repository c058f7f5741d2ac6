"""Steps of training."""

from __future__ import annotations

from collbench.operations.unsupported import RedopUnsupported
from collbench.plugins.training.computing import ComputingUnsupported
from collbench.plugins.training.framework_steps import Exchanged, TrafficDiffers, TrafficEqual
from collbench.plugins.training.routed import RoutingsDiffer
from collbench.plugins.training.step_task import PartNotPrepared
from collbench.plugins.training.task import WrongStepData
from tests.messages import Message

GATHER, SCATTER = Exchanged("allgather", 4096, "float32"), Exchanged("reducescatter", 4096, "float32")
WRONG = "rank 3: 7 wrong elements, first at 0: wanted 1, got 0"

MESSAGES: dict[str, Message] = {
    "no computing in a training": ComputingUnsupported("pipeline", ("data-parallel", "fsdp")),
    "part not prepared": PartNotPrepared("gradients, bucket 1 of 4", RedopUnsupported("MPI", "avg")),
    "routings differ": RoutingsDiffer(3, "node2"),
    "traffic equal": TrafficEqual("DistributedDataParallel of torch 2.13.0", 4, 80 << 20, "data-parallel", 80 << 20),
    "traffic equal, with other padding": TrafficEqual("FSDP2 of torch 2.13.0", 14, 18 << 20, "fsdp", 17 << 20),
    "traffic differs": TrafficDiffers(
        "FSDP2 of torch 2.13.0", 1, 3, Exchanged("allgather", 4096, "float32"), Exchanged("reducescatter", 4096, "float32")
    ),
    "traffic differs at its end": TrafficDiffers("FSDP2 of torch 2.13.0", 0, 14, None, Exchanged("allreduce", 4, "float32")),
    "exchanged": Exchanged("allreduce", 25 << 20, "float32"),
    "wrong step data": WrongStepData("fsdp", "mpi", WRONG),
}
