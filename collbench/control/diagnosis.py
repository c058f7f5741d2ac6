"""The diagnosis of a hang: states and processes of ranks, the evidence, and the fact that names the cause."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, structs

from collbench.control.members import HostKilled, Member, Rank
from collbench.control.path import PathFault, PathProblem
from collbench.reason import Fact
from collbench.units import listed, plural

_MOST_NAMED = 4
BETWEEN = "work between two phases"


class HangCause(Enum):
    """The cause of a hang. Every cause except a path's belongs to ranks."""

    ENDED = "process ended"
    STOPPED = "process stopped"
    PATH = "path drops packets"
    CONTROL_LOST = "control connection lost"
    HOST_SILENT = "host does not answer"
    NO_ANSWER = "no answer"
    RELAYED = "no answer through the first rank of the node"
    UNREACHABLE = "rank 0 cannot be reached"
    PROCESS_SILENT = "process does not answer"
    BEHIND = "behind the others"
    ELSEWHERE = "in another phase"
    ALL_PAUSED = "all ranks were paused"
    NOTHING_MOVES = "no rank is behind"


class ProcessEnd(Fact, frozen=True):
    """The process of a rank ended, in the way that the kernel of its host reports."""

    killed: bool = False  # by a signal
    signal: int = 0  # 0 where unknown
    exit_code: int = -1  # -1 where unknown
    out_of_memory: bool = False  # whether the kernel of that host has killed a process for lack of memory

    @property
    def is_known(self) -> bool:
        """Return whether the kernel reported how the process ended."""
        return self.killed or self.exit_code >= 0

    def render(self) -> str:
        """Return the end in a few words: "killed by signal 9 (SIGKILL)"."""
        if not self.is_known:
            return "killed, crashed, out of memory or exited"
        how = "killed" if self.killed else f"exit code {self.exit_code}"
        if self.killed and self.signal:
            how = f"killed by signal {self.signal}"
            with suppress(ValueError):
                how += f" ({signal.Signals(self.signal).name})"
        return f"{how} (its host ran out of memory)" if self.out_of_memory else how


class HangDiagnosis(Fact, frozen=True):
    """A launch makes no progress: the cause and its evidence."""

    cause: HangCause
    phase: str  # of the waiting ranks, or the rank's last one
    ranks: tuple[int, ...] = ()  # those that are the cause
    names: tuple[str, ...] = ()  # "rank 13 (node07, pid 4242)" each
    waiting: int = 0  # how many of `members` wait for them
    members: int = 0
    timeout_s: float = 0.0  # the deadline
    detail: str = ""  # the phase that the rank is in, or an address that answers
    end: ProcessEnd | None = None
    others: HostKilled | None = None  # ranks that may have ended before it
    iteration: int = -1  # of the timed loop, -1 without one
    more: int = 0  # processes that ended later
    source: str = ""  # the hosts between which packets may be lost; "" if both are the same path
    target: str = ""
    path: PathFault | None = None
    doing: str = ""  # the innermost calls of the first rank in `ranks`
    reporter: str = ""  # the rank that reports, if it is not rank 0
    paused_s: float = 0.0  # for how long all ranks were paused, at least

    def render(self) -> str:
        """Return the sentence, on one line."""
        return " ".join(self._text().split())

    def _text(self) -> str:
        if self.cause is HangCause.ENDED:
            more = f"; {plural(self.more, 'other rank')} ended after it" if self.more else ""
            others = f"; {self.others.render()}" if self.others else ""
            during = f" during {self.phase}" if self.phase else ""
            return f"{self._named} ended unexpectedly{during}: {(self.end or ProcessEnd()).render()}{others}{more}"
        if self.cause is HangCause.NOTHING_MOVES:
            return (
                f"hang: {self.phase}: all {self.members} ranks answer, and no rank is behind the others{_iteration(self.iteration)}: "
                f"the path between them carries nothing, or --timeout {self.timeout_s:g} is too short"
            )
        if self.cause is HangCause.ALL_PAUSED:
            return (
                f"hang: {self.phase}: all {self.members} ranks were paused for {self.paused_s:.0f} s: their job was suspended, or their "
                f"machines slept, longer than --timeout {self.timeout_s:g} allows"
            )
        if self.cause is HangCause.PATH and self.path:
            return f"hang: {self.phase}: {self.path.render()} (--timeout {self.timeout_s:g})"
        wait = "wait" if self.waiting != 1 else "waits"
        evidence = f"{self.waiting} of {self.members} ranks {wait} (--timeout {self.timeout_s:g})"
        if self.reporter:
            evidence = f"reported by {self.reporter}"
        return f"hang: {self.phase}: {self._cause}; {evidence}{f'; its innermost calls: {self.doing}' if self.doing else ''}"

    @property
    def _cause(self) -> str:
        is_, does, its, they = ("is", "does", "its", "it is") if len(self.ranks) == 1 else ("are", "do", "their", "they are")
        if self.cause is HangCause.NO_ANSWER:
            return f"no answer from {self._named}: {they} stopped, or the path from {self.source} to {self.target} drops packets"
        behind = f"{is_} behind: still at {self.detail}{_iteration(self.iteration)}"
        if self.iteration >= 0 and not self.detail:
            behind = f"never entered iteration {self.iteration}"
        return f"{self._named} " + {
            HangCause.STOPPED: f"{is_} stopped (by SIGSTOP or a debugger)",
            HangCause.CONTROL_LOST: f"lost {its} control connection: the host answers at {self.detail}, "
            "but does not acknowledge what rank 0 sends",
            HangCause.HOST_SILENT: f"{is_} on a host that does not answer: it is down, or its link is cut",
            HangCause.PROCESS_SILENT: f"{does} not answer, but the host does: stopped, or inside a call that holds the Python lock (GIL)",
            HangCause.RELAYED: f"{does} not answer; the answers come through the first rank of this node",
            HangCause.UNREACHABLE: f"cannot be reached: the host is down, or the path between {self.source} and {self.target} is cut",
            HangCause.BEHIND: behind,
            HangCause.ELSEWHERE: f"{is_} in another phase: {self.detail}",
        }[self.cause]  # fmt: skip

    @property
    def _named(self) -> str:
        return listed(self.names, _MOST_NAMED)


class RankPaused(Fact, frozen=True):
    """Rank 0 itself was stopped for longer than the deadline of the other ranks."""

    text = (
        "hang: {phase}: {name} was paused for {paused_s:.1f} s (by SIGSTOP, a debugger or its machine), "
        "longer than the others wait (--timeout {timeout_s:g}): they have ended"
    )
    name: str
    phase: str
    paused_s: float
    timeout_s: float


class RankStalled(Fact, frozen=True):
    """A rank made no progress within the deadline, and rank 0 could not be queried for the state of the others."""

    phase: str
    name: str
    timeout_s: float
    iteration: int = -1
    stopped: tuple[str, ...] = ()  # the other ranks of this host that are stopped: "rank 1 (node1, pid 7)" each

    def render(self) -> str:
        """Return the sentence: "hang: allreduce 64 MiB on mpi: rank 1 (node2, pid 7) has not moved for 60 s in iteration 41; …"."""
        is_ = "is" if len(self.stopped) == 1 else "are"
        cause = f"{listed(self.stopped, _MOST_NAMED)} {is_} stopped" if self.stopped else "look at the ranks that print no such line"
        return (
            f"hang: {self.phase}: {self.name} has not moved for {self.timeout_s:g} s{_iteration(self.iteration)}; "
            f"{cause}; raise --timeout if this is expected"
        )


Hang = HangDiagnosis | RankPaused | RankStalled


def _iteration(number: int) -> str:
    return f" in iteration {number}" if number >= 0 else ""


# The native stack of a process, for the report of a hang. It needs py-spy or gdb, which collbench does not install.

_DEADLINE_S = 2.5
_MOST_TEXT = 20_000
_MOST_FRAMES = 4
_TOOLS = {
    "py-spy": ("dump", "--native", "--nonblocking", "--pid"),
    "gdb": ("-batch", "-nx", "-iex", "set auto-load off", "-ex", "thread apply all bt", "-p"),
}
_EXAMINED = "COLLBENCH_EXAMINED"  # in the tool's environment: the process that the tool stops, and the state of the process before
_STOPPED = "stopped"
_MOST_READS = 3
_MAIN_THREAD = re.compile(r'^Thread (?:1 \(|.*"MainThread"$)')
_FRAME = re.compile(r"^\s*(?:#\d+\s+(?:0x[0-9a-f]+ in )?)?([\w.@:~<>]+) ?\(")
_PYTHON_FRAME = re.compile(r'^  File ".*", line \d+, in (\S+)$', re.MULTILINE)
_INTERPRETER = re.compile(r"^(_?Py[A-Z_]|_PyEval|cfunction_|method_|ffi_|_call_|slot_tp_|builtin_|run_mod|pymain|<module>|Thread)")


def stack(pid: int) -> str:
    """Return the stack as py-spy or gdb prints it, or the reason why it is missing. Never raises; takes at most 2.5 seconds."""
    path = tool_here()
    if path is None:
        return "no stack: neither py-spy nor gdb is installed"
    tool = Path(path).name
    before = _STOPPED if is_stopped(pid) else "running"
    env = {**os.environ, "DEBUGINFOD_URLS": "", _EXAMINED: f"{pid} {before}"}  # without URLs: gdb would query servers for debug data
    try:
        ended = subprocess.run(
            [path, *_TOOLS[tool], str(pid)], stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S, check=False, env=env
        )
    except subprocess.TimeoutExpired as timeout:
        return (timeout.stdout or b"").decode(errors="replace")[:_MOST_TEXT] or f"{tool} did not end within {_DEADLINE_S:g} s"
    except OSError as error:
        return f"{tool} failed ({type(error).__name__})"
    return ended.stdout.decode(errors="replace")[:_MOST_TEXT] or f"{tool} printed no stack"


def tool_here() -> str | None:
    """Return the program that can read another process's stack, or None."""
    return next((path for path in map(shutil.which, _TOOLS) if path), None)


def own_stack(*, native: bool = False) -> str:
    """Return the Python stack of this process's main thread, the innermost call last. Other threads call it.

    native: the stack by py-spy or gdb follows, if one of them is installed. It stops this process for seconds: other ranks must not
    wait for an answer of this process.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    text = "".join(traceback.format_stack(frame))[-_MOST_TEXT:] if frame else "its main thread has ended"
    return text + stack(os.getpid()) if native and tool_here() else text


def innermost(text: str) -> str:
    """Return the main thread's innermost calls of a stack, "poll < MPID_Progress_wait < PMPI_Allreduce"; "" where unknown."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if _MAIN_THREAD.match(line)), None)
    if head is None:
        return " < ".join(_PYTHON_FRAME.findall(text)[: -_MOST_FRAMES - 1 : -1])
    frames = map(_FRAME.match, itertools.takewhile(str.strip, lines[head + 1 :]))
    names = (frame[1] for frame in frames if frame)
    return " < ".join(itertools.islice(itertools.takewhile(lambda name: not _INTERPRETER.match(name), names), _MOST_FRAMES))


# The processes of this node's ranks: which have ended, which are stopped, and in which call one of them is.

_START_TIME = 19  # index of starttime in /proc/PID/stat, counted from the field after the name (proc(5))
_EXIT_CODE = 49  # of exit_code


class NodeProcesses:
    """The processes of this node that this process watches. Used by one thread. A descriptor becomes readable when its process ends."""

    def __init__(self) -> None:
        self._killed_for_memory = _killed_for_memory()
        self._pids: dict[int, int] = {}
        self._ranks: dict[int, int] = {}  # rank by descriptor

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of the watched processes."""
        return list(self._ranks)

    def watch(self, member: Member) -> None:
        """Watch a rank's process, if it runs on this host and matches its description. This process itself is never watched.

        The host's name must match too, since processes in two containers may have the same PID and start time.
        """
        rank = member.rank
        pid = member.pid
        if rank in self._pids or member.host != socket.gethostname() or pid in (0, 1, os.getpid()):
            return
        if 0 <= member.began == began_of(pid):
            with suppress(OSError):
                self._ranks[os.pidfd_open(pid)] = rank
                self._pids[rank] = pid

    def has(self, rank: int) -> bool:
        """Return whether that rank's process is watched here."""
        return rank in self._pids

    def ended(self, descriptor: int) -> tuple[int, ProcessEnd]:
        """Return the rank of an ended process, and how it ended as far as the kernel reports it. Stop watching the process."""
        rank = self._ranks[descriptor]
        how = how_ended(self._pids.get(rank, 0))
        self._forget(descriptor)
        may_be_killed_for_memory = not how.is_known or how.signal == signal.SIGKILL  # the kernel kills by SIGKILL, and others, too
        if may_be_killed_for_memory and _killed_for_memory() > self._killed_for_memory:
            how = structs.replace(how, killed=how.killed or not how.is_known, out_of_memory=True)
        return rank, how

    def _forget(self, descriptor: int) -> None:
        self._pids.pop(self._ranks.pop(descriptor), None)
        os.close(descriptor)

    def forget(self, rank: int) -> None:
        """Stop watching a rank, because it leaves in order."""
        for descriptor in [descriptor for descriptor, watched in self._ranks.items() if watched == rank]:
            self._forget(descriptor)

    def stopped(self) -> list[int]:
        """Return the ranks of this node that SIGSTOP or a debugger has stopped."""
        return [rank for rank, pid in self._pids.items() if is_stopped(pid)]

    def stack_of(self, rank: int) -> str:
        """Return the native stack of the rank's process, or the reason why it is missing."""
        return stack(self._pids[rank]) if rank in self._pids else "its process is not on this host"

    def kill(self, ranks: Collection[int] | None = None) -> None:
        """Kill every process that still runs, including stopped ones; if `ranks` is given, only those of these ranks."""
        for descriptor, rank in self._ranks.items():
            if ranks is None or rank in ranks:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Stop watching all processes."""
        for descriptor in list(self._ranks):
            self._forget(descriptor)


def _killed_for_memory() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot, in all control groups (mm/vmstat.c); 0 if unknown."""
    return int(_line_of(Path("/proc/vmstat"), "\n", "oom_kill ") or 0)


def began_of(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; -1 if unknown. With its PID it identifies one process."""
    fields = _stat(pid)
    return int(fields[_START_TIME]) if len(fields) > _START_TIME and fields[_START_TIME].isdigit() else -1


def how_ended(pid: int) -> ProcessEnd:
    """Return how a process ended. All fields are unknown if it still runs, or if its parent has already collected its status."""
    fields = _stat(pid)
    if len(fields) <= _EXIT_CODE or fields[0] != "Z" or not fields[_EXIT_CODE].isdigit():
        return ProcessEnd()
    status = int(fields[_EXIT_CODE])
    number = status & 0x7F
    return ProcessEnd(killed=True, signal=number) if number else ProcessEnd(exit_code=status >> 8)


def is_stopped(pid: int) -> bool:
    """Return whether SIGSTOP or a debugger has stopped the process. While `stack` examines it, the state before that counts."""
    for _ in range(_MOST_READS):
        state = next(iter(_stat(pid)), "")
        if state != "t":
            return state == "T"
        tracer = int(_line_of(Path(f"/proc/{pid}/status"), "\n", "TracerPid:") or 0)
        examined_pid, _, before = _line_of(Path(f"/proc/{tracer}/environ"), "\0", f"{_EXAMINED}=").partition(" ")
        if before and examined_pid == str(pid):  # the tracer is a tool of collbench, which has stored the state before
            return before == _STOPPED
        if _stat(tracer):
            return True
    return True  # the debugger is outside this container


def _line_of(path: Path, separator: str, name: str) -> str:
    """Return the text after `name` in a file of /proc; "" if the name is missing or the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split(separator)
    except OSError:
        return ""
    return next((line.removeprefix(name).strip() for line in lines if line.startswith(name)), "")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name (proc(5)), from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


# The state of a rank. Its I/O thread sends it to the coordinator regularly, and immediately on request.

LONGEST_PHASE = 300  # characters of a phase's name
_Number = Annotated[int, Meta(gt=-(1 << 53), lt=1 << 53)]
_Seconds = Annotated[float, Meta(gt=-(2.0**53), lt=2.0**53)]  # neither NaN nor infinite


class RankState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The state of a rank, as it sends it to rank 0."""

    rank: Rank
    phase: Annotated[str, Meta(max_length=LONGEST_PHASE)] = ""  # "allreduce 64 MiB on mpi: warm-up"; "" between phases
    waits: bool = False  # whether it waits for other ranks over the control plane; otherwise it works, or is inside a library
    iteration: _Number = -1  # of the timed loop that it is in, from 0 on; -1 outside a timed loop
    still_s: _Seconds = 0.0  # without progress
    step: _Number = 0  # number of control-plane steps that it has begun
    paused_s: _Seconds = 0.0  # in all, in which the whole process could not run (stopped, swapped out, its machine asleep)
    held: bool = False  # whether SIGSTOP or a debugger has stopped it; then the first rank of its node sends its last known state
    recently_paused_s: _Seconds = 0.0  # of paused_s, in pauses that ended within the last timeout or since the last progress

    @property
    def place(self) -> tuple[int, int]:
        """Return the rank's progress for comparison: of two ranks the one with the smaller value is behind."""
        return self.step, self.iteration


# The diagnosis of a hang is the first of these that applies: an ended process, a stopped one, a path with a certain fault, a silent host or
# process, a lossy path, a pause of all ranks, a rank in another place. docs/explanation/hang-diagnosis.md has the evidence of each.


class HangEvidence(msgspec.Struct, frozen=True):
    """The evidence that rank 0 has when a launch makes no progress, by rank where it is of ranks."""

    what: str  # the phase without progress; "" when a process has ended
    timeout_s: float
    members: Mapping[int, str]  # the name in messages: "rank 13 (node07, pid 4242)"
    answers: Mapping[int, RankState]  # the states of the ranks that replied
    states: Mapping[int, RankState] = msgspec.field(default_factory=dict)  # the last known states
    gone: Sequence[int] = ()  # ranks with an ended process, in the order of their ends
    how: Mapping[int, ProcessEnd] = msgspec.field(default_factory=dict)
    other_candidates: Mapping[int, HostKilled] = msgspec.field(default_factory=dict)  # which others may have ended before it
    held: Collection[int] = ()  # ranks with a process stopped by SIGSTOP or a debugger, as their node reports
    unreachable: Collection[int] = ()  # ranks on hosts that do not acknowledge rank 0's messages
    elsewhere: Mapping[int, str] = msgspec.field(default_factory=dict)  # another address at which its host answers
    spokesmen: Mapping[int, int] = msgspec.field(default_factory=dict)  # the rank that forwards its messages: the first of its node
    doing: Mapping[int, str] = msgspec.field(default_factory=dict)  # its innermost calls
    hosts: Mapping[int, str] = msgspec.field(default_factory=dict)  # the name of its host
    path: PathFault | None = None


def diagnose(evidence: HangEvidence) -> HangDiagnosis:
    """Return the cause of a hang."""
    ended = [rank for rank in evidence.gone if rank not in evidence.held]
    silent = sorted(set(evidence.members) - set(evidence.answers) - set(evidence.gone) - set(evidence.held))
    if ended:
        first = ended[0]
        end = evidence.how.get(first, ProcessEnd())
        others = None if end.is_known else evidence.other_candidates.get(first)
        phase = _phase_of(evidence, ended)
        return _hang(evidence, HangCause.ENDED, (first,), phase, waiting=0, doing="", end=end, others=others, more=len(ended) - 1)
    if evidence.held:
        return _hang(evidence, HangCause.STOPPED, tuple(sorted(evidence.held)))
    if evidence.path and (evidence.path.problem in _CERTAIN or not silent):
        return _diagnose_path(evidence, evidence.path)
    return _diagnose_silence(evidence, silent) if silent else _diagnose_progress(evidence)


_CONTINUED_S = 4.0  # from the end of a pause to the inquiry
_CERTAIN = (PathProblem.LOOPBACK, PathProblem.MTU, PathProblem.ONE_WAY)


def _diagnose_path(evidence: HangEvidence, path: PathFault) -> HangDiagnosis:
    return _hang(evidence, HangCause.PATH, (), _phase_of(evidence, ()) or BETWEEN, waiting=0, path=path)


def _diagnose_silence(evidence: HangEvidence, silent: Sequence[int]) -> HangDiagnosis:
    path = evidence.path
    unreachable = tuple(rank for rank in silent if rank in evidence.unreachable)
    address = next((evidence.elsewhere[rank] for rank in unreachable if rank in evidence.elsewhere), None)
    if address:
        hosts = {evidence.hosts.get(rank) for rank in unreachable}
        if path and path.target in hosts and (path.problem is not PathProblem.STALLED or path.stalled > 1):
            return _diagnose_path(evidence, path)  # which loses measured data too, not only the control plane's packets
        return _hang(evidence, HangCause.CONTROL_LOST, unreachable, detail=address)
    if unreachable:
        return _hang(evidence, HangCause.HOST_SILENT, unreachable)
    not_relayed = tuple(rank for rank in silent if evidence.spokesmen.get(rank, rank) not in set(silent) - {rank})
    ranks = not_relayed or tuple(silent)
    host = evidence.hosts.get(ranks[0], "")
    rank_0_host = evidence.hosts.get(0, "")
    if host == rank_0_host:
        return _hang(evidence, HangCause.PROCESS_SILENT, ranks)
    if path and path.problem is PathProblem.LOSS and host in (path.source, path.target):
        return _diagnose_path(evidence, path)
    return _hang(evidence, HangCause.NO_ANSWER, ranks, source=host, target=rank_0_host)


def paused_together_s(states: Collection[RankState], timeout_s: float) -> float:
    """Return for how many seconds all ranks were paused, at least; 0 if it was within the deadline, or if they hang without it too."""
    paused_s = min((state.recently_paused_s for state in states), default=0.0)
    hangs_anyway = any(state.still_s - state.recently_paused_s > timeout_s + _CONTINUED_S for state in states)
    return 0.0 if hangs_anyway or paused_s <= timeout_s else paused_s


def _diagnose_progress(evidence: HangEvidence) -> HangDiagnosis:
    answers = evidence.answers
    majority, phase = _majority(evidence)
    paused_s = paused_together_s(answers.values(), evidence.timeout_s)
    if paused_s > 0:
        return _hang(evidence, HangCause.ALL_PAUSED, (), phase, waiting=0, members=len(answers), paused_s=paused_s)
    behind = {rank: state for rank, state in answers.items() if not state.waits and state.place < majority}
    if behind and 2 * len(behind) <= len(answers):
        last_place = min(state.place for state in behind.values())
        ranks = tuple(sorted(rank for rank, state in behind.items() if state.place == last_place))
        last = answers[ranks[0]]
        if last.phase == phase and last.step == majority[0]:
            return _hang(evidence, HangCause.BEHIND, ranks, phase, iteration=majority[1])
        return _hang(evidence, HangCause.BEHIND, ranks, phase, detail=last.phase or BETWEEN, iteration=last.iteration)
    ranks = tuple(sorted(rank for rank, state in answers.items() if state.place == majority and state.phase != phase and not state.waits))
    if ranks and 2 * len(ranks) < len(answers):
        return _hang(evidence, HangCause.ELSEWHERE, ranks, phase, detail=answers[ranks[0]].phase or BETWEEN)
    rank_0 = answers.get(0, RankState(0))
    waiting = [rank for rank, state in sorted(answers.items()) if rank_0.waits and state.waits and state.step <= rank_0.step]
    ranks = tuple(rank for rank in waiting if answers[rank].phase != rank_0.phase)  # they wait for rank 0, which waits in another phase
    if ranks:
        return _hang(evidence, HangCause.ELSEWHERE, ranks, rank_0.phase, detail=answers[ranks[0]].phase)
    return _hang(evidence, HangCause.NOTHING_MOVES, (), phase, waiting=0, members=len(answers), iteration=majority[1])


def _majority(evidence: HangEvidence) -> tuple[tuple[int, int], str]:
    """Return the progress and phase of most ranks; the furthest if two are equally frequent."""
    places = Counter(state.place for state in evidence.answers.values())
    place_of_most = max(places, key=lambda place: (places[place], place))
    phases = Counter(state.phase for state in evidence.answers.values() if state.place == place_of_most)
    return place_of_most, max(phases, key=lambda phase: (phases[phase], phase))


def _phase_of(evidence: HangEvidence, ranks: Sequence[int]) -> str:
    """Return the phase without progress; else the phase of the waiting ranks; else the last known phase of the first of `ranks`."""
    last_phases = [evidence.states[rank].phase for rank in ranks if rank in evidence.states]
    return evidence.what or (_majority(evidence)[1] if evidence.answers else "") or next(filter(None, last_phases), "")


def _hang(evidence: HangEvidence, cause: HangCause, ranks: tuple[int, ...], phase: str = "", **more: Any) -> HangDiagnosis:
    names = tuple(evidence.members.get(rank, f"rank {rank}") for rank in ranks)
    waiting = len(evidence.answers.keys() - set(ranks) - set(evidence.held))
    doing = next((evidence.doing[rank] for rank in ranks if evidence.doing.get(rank)), "")
    phase = phase or _phase_of(evidence, ranks)
    hang = HangDiagnosis(cause, phase, ranks, names, waiting, len(evidence.members), evidence.timeout_s, doing=doing)
    return structs.replace(hang, **more)
