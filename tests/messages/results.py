"""Answers and quality of a run."""

from __future__ import annotations

from collbench.report.answer import Answer, CommunicatorMemory, HeadlineRate, Latency, NextCommand, Verification
from collbench.results.expectation import (
    FromNcclConstants,
    FromNcclLog,
    FromRunAndReference,
    FromRunSizes,
    LargestOfRun,
    NotSaturated,
    OffTheLine,
    OutsideOfSizes,
    SmallestOfRun,
    TooFewSizes,
    UnreliableTime,
)
from collbench.results.quality import REMEDIES, QualityReason, RunQuality, SharingThreads

RATE = HeadlineRate(5.01e9, 64 << 20, 7.61e9, 65.8, "memory copy and sum", measured=True)
TIME, IDLE = QualityReason("time", 7, 20), QualityReason("idle", 12)

MESSAGES = {
    "expected time from NCCL's log": FromNcclLog(choice="Ring/LL"),
    "expected time from NCCL's constants": FromNcclConstants(choice="NVLS/Simple"),
    "expected time from the run": FromRunSizes(smallest=64, largest=64 << 20),
    "expected time from the run and a link": FromRunAndReference(smallest=64, limited_by="NIC eth0 1 Gb/s"),
    "the smallest size": SmallestOfRun(),
    "the largest size": LargestOfRun(),
    "an unreliable time": UnreliableTime(),
    "no model: one size": TooFewSizes(sizes=1),
    "no model: no size": TooFewSizes(sizes=0),
    "no model: outside": OutsideOfSizes(smallest=64, largest=1 << 20),
    "no model: sizes off the line": OffTheLine(first=4096, last=1 << 20, factor=2.13),
    "no model: a size off the line": OffTheLine(first=4096, last=4096, factor=0.5),
    "not saturated": NotSaturated("allreduce", "nccl", 16 << 30, 1440, 406e9, 433e9, 1000e9),
    "answer": Answer("allreduce", "mpi", (), RATE, Latency((0.25e-6,), 8), Verification(12, 12)),
    "answer of one of several modes": Answer("allreduce", "mpi", ("batched",), RATE, Latency((0.25e-6,), 8), Verification(12, 12)),
    "answer of a case that wrong data ended": Answer(
        "memcpy", "cuda", verification=Verification(1, 1, 1, imported=True), missing="wrong data: Invalid value"
    ),
    "answer of a barrier": Answer("barrier", "mpi", (), None, Latency((1.2e-6,)), Verification(1, 0, without_data=True)),
    "answer without a figure": Answer("allreduce", "nccl", missing="no GPU"),
    "rate": RATE,
    "rate that is unreliable": HeadlineRate(5.01e9, 64 << 20, 7.61e9, 65.8, "NIC 4×100 Gb/s", unreliable=True),
    "rate far below": HeadlineRate(5.01e5, 8192, 26.2e9, 0.0019, "memory copy and sum", measured=True),
    "rate with larger sizes left out": HeadlineRate(5.01e9, 4 << 20, left_out=(16 << 20, 64 << 20)),
    "rate without a limit": HeadlineRate(5.01e9, 64 << 20),
    "rate with a disturbed reference": HeadlineRate(5.01e9, 64 << 20, disturbed=True),
    "latency": Latency((0.25e-6,), 8),
    "latency of two values": Latency((293.5e-6, 3733e-6), 64),
    "answer with the memory of a communicator": Answer(
        "init_create",
        "nccl",
        (),
        None,
        Latency((0.1,)),
        Verification(1, 0, files_left_open=0),
        CommunicatorMemory(3 << 20, "ncclCommMemStats"),
    ),
    "memory of a communicator, uncounted": CommunicatorMemory(41 << 20, "free memory at its creation"),
    "verified": Verification(12, 12),
    "verified in part": Verification(12, 5),
    "not verified": Verification(12, 0),
    "no data": Verification(1, 0, without_data=True),
    "not verified by another tool": Verification(12, 0, imported=True),
    "wrong data": Verification(12, 12, 1),
    "next command": NextCommand("runs/my run"),
    "quality ok": RunQuality(22, 0, 0),
    "quality noisy": RunQuality(2, 20, 0, (QualityReason("idle", 20),)),
    "quality mixed": RunQuality(9, 10, 3, (IDLE, TIME)),
    "quality of one": RunQuality(9, 1, 0, (TIME,)),
    **{f"reason {remedy}": QualityReason(remedy, 3) for remedy in REMEDIES},
    "reason time with a suggestion": TIME,
    "reason threads, counted": QualityReason("threads", 8, threads=SharingThreads(("gloo",), 2, 8, 2, 7.2)),
    "threads that share cores": SharingThreads(("gloo",), 4, 16, 4, 3.1),
    "reason time, -n": QualityReason("time", 7, iterations=200),
    "reason time, a larger -n": QualityReason("time", 7, iterations=0),
}
