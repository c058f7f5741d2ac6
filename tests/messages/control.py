"""The control plane: hangs and their causes, refused connections, errors of ranks that do not meet."""

from __future__ import annotations

from collbench.control.addresses import OpenListener, routes_to
from collbench.control.diagnosis import HangCause, HangDiagnosis, ProcessEnd, RankPaused, RankStalled
from collbench.control.members import HostKilled, Member, addressed
from collbench.control.path import PathFault, PathProblem
from collbench.control.security import ConnectionsRefused, secret_of
from collbench.control.server import unreadable
from collbench.control.tree import RankRestarted, RanksApart
from collbench.control.wire import Malformed, parsed
from collbench.errors import Interrupted
from collbench.launch.advice import ProcessPerGpu, RanksNotEnded, SingleTask
from collbench.launch.info import LaunchInfo

WARM = "allreduce 64 MiB on mpi: warm-up"
NAMES = tuple(f"rank {rank} (node{rank // 2}, pid {4200 + rank})" for rank in range(8))
CALLS = "poll < MPID_Progress_wait < PMPI_Allreduce"


def hang(cause: HangCause, *ranks: int, **more: object) -> HangDiagnosis:
    names = tuple(NAMES[rank] for rank in ranks)
    return HangDiagnosis(cause, WARM, ranks, names, 4 - len(ranks), 4, 60.0, **more)  # type: ignore[arg-type]


def path(problem: PathProblem, **more: object) -> PathFault:
    return PathFault(problem, "node0", "node1", 1000, 1500, 12, 41, 4, 1, **more)  # type: ignore[arg-type]


def one_secret(env: dict[str, str]) -> object:
    return secret_of(LaunchInfo("torchrun", 0, 2, 0, 1, "tcp://node0", "token"), env)


def read(*frames: bytes) -> str:
    try:
        return str(parsed(frames))
    except Malformed as error:
        return unreadable(str(error))


MESSAGES = {
    "one task": SingleTask(),
    "ranks are not ended": RanksNotEnded(),
    "a process for each GPU": ProcessPerGpu("srun", 8),
    "a process for each GPU of a pod": ProcessPerGpu("kubernetes", 4),
    "killed": hang(HangCause.ENDED, 1, end=ProcessEnd(killed=True, signal=9)),
    "killed for memory": ProcessEnd(killed=True, signal=9, out_of_memory=True),
    "killed by an unknown signal": ProcessEnd(killed=True, out_of_memory=True),
    "exited": hang(HangCause.ENDED, 1, end=ProcessEnd(exit_code=1), more=2),
    "ended": hang(HangCause.ENDED, 2, others=HostKilled("node1", (3,))),
    "host killed": HostKilled("node1", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)),
    "stopped": hang(HangCause.STOPPED, 2, doing=CALLS),
    "several stopped": hang(HangCause.STOPPED, 0, 1, 2, 3, 4, 5),
    "control connection lost": hang(HangCause.CONTROL_LOST, 3, detail="10.0.9.2"),
    "host silent": hang(HangCause.HOST_SILENT, 2, 3),
    "no answer": hang(HangCause.NO_ANSWER, 2, source="node1", target="node0"),
    "relayed": hang(HangCause.RELAYED, 0, reporter=NAMES[3]),
    "unreachable": hang(HangCause.UNREACHABLE, 0, source="node0", target="node1", reporter=NAMES[2]),
    "process silent": hang(HangCause.PROCESS_SILENT, 1),
    "iterations behind": hang(HangCause.BEHIND, 1, iteration=41),
    "phases behind": hang(HangCause.BEHIND, 1, iteration=3, detail="broadcast 8 B on mpi: measuring"),
    "elsewhere": hang(HangCause.ELSEWHERE, 1, detail="work between two phases"),
    "all paused": hang(HangCause.ALL_PAUSED, paused_s=84.2),
    "nothing moves": hang(HangCause.NOTHING_MOVES, iteration=41),
    "path": hang(HangCause.PATH, path=path(PathProblem.MTU)),
    "path of a host to itself": path(PathProblem.LOOPBACK),
    "path loses packets": path(PathProblem.LOSS),
    "path in one way": path(PathProblem.ONE_WAY),
    "path stalled": path(PathProblem.STALLED),
    "path stalled in an unknown direction": path(PathProblem.STALLED, direction_known=False),
    "rank 0 paused": RankPaused(NAMES[0], WARM, 71.25, 60.0),
    "rank stalled": RankStalled(WARM, NAMES[1], 60.0, 41),
    "rank stalled beside a stopped one": RankStalled(WARM, NAMES[1], 60.0, -1, (NAMES[0],)),
    "restarted": RankRestarted(1, "node0", 4711),
    "refused": ConnectionsRefused(1, ("10.0.9.9",)),
    "refused many": ConnectionsRefused(1200, ("10.0.9.9", "10.0.9.10", "10.0.9.11", "10.0.9.12"), True, ("10.0.9.9",)),
    "refused from unknown": ConnectionsRefused(2),
    "open listener, loopback": OpenListener("node0", ("127.0.1.1",)),
    "open listener, other name": OpenListener("node0"),
    "ranks apart": RanksApart(NAMES[1], "opening gloo", 7, NAMES[0], "opening gloo: looking for GPUs", 7),
    "ranks apart in steps of one name": RanksApart(NAMES[1], "gathering samples", 3, NAMES[0], "gathering samples", 4),
    "no family": lambda: addressed([
        Member(0, "a", 0, 1, ()), Member(1, "b", 0, 1, (), routes=(("10.0.0.2", "10.0.0.1"),)),
        Member(2, "c", 0, 1, (), routes=(("fd00::3", "fd00::1"),)),
    ]),
    "unresolved": lambda: routes_to("tcp://no.such.host.invalid"),
    "short secret": lambda: one_secret({"COLLBENCH_SECRET": "short"}),
    "no secret": lambda: one_secret({}),
    "unreadable": read,
    "unreadable version": lambda: read(b"hello", b"0"),
    "unreadable step": lambda: read(b"m\x92\xa5grant\xa1x"),
    "interrupted": lambda: Interrupted(15),
}  # fmt: skip
