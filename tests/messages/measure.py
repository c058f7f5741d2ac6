"""What a measuring command reports beside its rows: backends, cores, disturbances, wrong data, samples of pairs, resumed runs."""

from __future__ import annotations

from collbench.launch.software import Build, SoftwareDiffers, mismatch
from collbench.measuring.crossing import OtherPath
from collbench.measuring.disturbances import CaseDisturbed, LinkFlapped, PortErrors, ProcessPaused, SegmentsRetransmitted
from collbench.measuring.memory import LargeSizesLeftOut
from collbench.measuring.open_backends import NO_BACKEND, BackendNotMeasured, BackendSkipped
from collbench.measuring.prepared_case import LeftEarly, MoreWrongData, WrongDataFound
from collbench.measuring.resume import CasesRemoved, LineCut, LockTakenOver, RunResumed
from collbench.measuring.session import CoresShared, IdleRank, WrongDataStop
from collbench.measuring.tasks.cases import TimeWasOver

CASE = "allreduce 64 MiB on mpi"
WRONG = "rank 3: 7 wrong elements, first at 0: wanted 1, got 0"
OLD, NEW = Build(1, "0.1.0", "abc"), Build(2, "0.2.0", "def")

MESSAGES = {
    "backend skipped": BackendSkipped("gloo", "torch is not installed: pip install 'collbench[torch]'"),
    "backend not measured": BackendNotMeasured("nccl", "no GPU"),
    "no backend": lambda: NO_BACKEND,
    "software differs": SoftwareDiffers("python", {"3.11.2": ["n1", "n2"], "missing": ["n3"]}),
    "other build": lambda: mismatch(1, "n2", OLD, "n1", NEW),
    "older build": lambda: mismatch(1, "n2", None, "n1", NEW),
    "cores shared": CoresShared("node0", 8, 4),
    "large sizes left out": LargeSizesLeftOut(64 << 20),
    "one core shared": CoresShared("node0", 8, 1),
    "idle rank": IdleRank(5),
    "link flapped": CaseDisturbed(CASE, (LinkFlapped("node1", "eth0", 1),)),
    "link flapped, alone": LinkFlapped("node1", "eth0", 2),
    "segments retransmitted": SegmentsRetransmitted("node1", 70, 4000),
    "port errors": PortErrors("node1", "mlx5_0/1", "symbol_error", 12, used=True),
    "port errors, unused": PortErrors("node1", "eth1", "rx_errors", 12, used=False),
    "process paused": ProcessPaused("node1", 1.5),
    "disturbed": CaseDisturbed(CASE, (SegmentsRetransmitted("node1", 7, 900), ProcessPaused("node1", 1.5)), 2, "warm-up", 3.02, 0.014),
    "disturbed without a cause": CaseDisturbed(CASE, (), 1, "timed", 0.5, 0.01),
    "other path by bytes": OtherPath("mpi", "node0", "out", 100_000, 512 << 20, others=1),
    "other path by packets": OtherPath("mpi", "node0", "in", packets=30, iterations=100, others=2),
    "other path over NVLink": OtherPath("nccl", "node0", "out", 1000, 1 << 30, nvlink=True),
    "wrong data between two": WrongDataFound(("node0", "node1"), 2, 7, WRONG),
    "wrong data inside one": WrongDataFound(("node0",), 1, 1),
    "wrong data among many": WrongDataFound(("node0", "node1", "node2", "node3"), 6, 2),
    "more wrong data": MoreWrongData(2, "pair"),
    "stopped in a case": WrongDataStop(CASE, 5, WRONG),
    "stopped in a round": WrongDataStop("round 3 of 7"),
    "stopped": WrongDataStop(),
    "time over": TimeWasOver(3, 16, "allreduce 64 MiB on gloo (float32, sum)", 15.0, (("allreduce", "gloo"),)),
    "time over for one case": TimeWasOver(1, 16, "allreduce 64 MiB on gloo (float32, sum)", 15.0, (("allreduce", "gloo"),)),
    "left a barrier early": lambda: LeftEarly(1, 0, 210e-6, 0.01).sentence(),
    "resumed": RunResumed("runs/x", 3, 8),
    "resumed, one left": RunResumed("runs/x", 7, 8),
    "resumed, complete": RunResumed("runs/x", 8, 8),
    "rounds resumed": RunResumed("runs/x", 3, None, "round"),
    "rounds resumed, complete": RunResumed("runs/x", 3, None, "round", complete=True),
    "lock taken over": LockTakenOver("runs/x", "process 4711 on node0"),
    "line cut": LineCut("cells.jsonl", 8),
    "cases removed": CasesRemoved(2),
    "one case removed": CasesRemoved(1),
}
