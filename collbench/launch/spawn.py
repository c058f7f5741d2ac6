"""Start ranks without a launcher on this host, as child processes or through mpiexec; or a node's ranks under one task."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from collbench.errors import FAILED, FINE, USAGE, UsageError
from collbench.launch.detect import to_variable
from collbench.launch.info import LaunchInfo, number, without_manager, without_scheduler
from collbench.launch.mpi import crash_in_opening, preferred_mpiexec
from collbench.launch.shared_memory import remove_left, shortage_behind
from collbench.launch.supervise import GRACE_S, SupervisedProcess, Supervisor, name_of, report_error

# The mpiexec that belongs to this Python's mpi4py: its command line for ranks on this host, and the meaning of its exit code.

_CPUS = Path("/sys/devices/system/cpu")


def find_mpiexec(env: Mapping[str, str]) -> Path | None:
    """Return the mpiexec next to this Python (where wheels install it), else the first in PATH, else None.

    With COLLBENCH_MPI it is that of this installation, else the first in PATH. Raises NotAnMpi.
    """
    preferred = preferred_mpiexec(env)
    if preferred and os.access(preferred, os.X_OK):
        return preferred
    in_path = shutil.which("mpiexec", path=env.get("PATH"))
    return Path(in_path) if in_path else None


def mpiexec_family(mpiexec: Path) -> str:
    """Return "Open MPI", "MPICH", "Intel MPI" or "other", from `mpiexec --version`. Raises UsageError if it cannot run."""
    try:
        answer = subprocess.run([str(mpiexec), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{mpiexec} cannot be run ({error}): install mpi4py with its MPI, `pip install collbench[mpich]`") from error
    text = answer.stdout + answer.stderr
    if "Open MPI" in text or "OpenRTE" in text or "PRRTE" in text:
        return "Open MPI"
    if "Intel(R) MPI Library" in text:
        return "Intel MPI"
    return "MPICH" if "HYDRA" in text else "other"


def physical_cores() -> int:
    """Return the cores that this process may use, hyper-threads counted once: Open MPI's slots."""
    allowed = os.sched_getaffinity(0)
    try:
        return len({(_CPUS / f"cpu{n}/topology/thread_siblings_list").read_text(encoding="ascii") for n in allowed})
    except OSError:
        return len(allowed)


def command(mpiexec: Path, ranks: int, program: Sequence[str], cores: int | None = None) -> list[str]:
    """Return mpiexec's command line for `ranks` of `program` on this host."""
    family = mpiexec_family(mpiexec)
    flags: list[str] = []
    if family in ("MPICH", "Intel MPI"):  # both are hydra
        flags = ["-launcher", "fork", "-host", "localhost"]
    elif family == "Open MPI" and ranks > (physical_cores() if cores is None else cores):
        flags = ["--oversubscribe"]  # only if needed, since it also unbinds ranks from cores
    return [str(mpiexec), *flags, "-n", str(ranks), *program]


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the additional variables that mpiexec needs: Open MPI rejects root without them."""
    if os.geteuid() != 0:
        return dict(env)
    return {**env, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


BEGAN = "COLLBENCH_BEGAN"  # for the ranks that a process starts on its host: when the command began, in seconds on CLOCK_MONOTONIC


def command_began_s(env: Mapping[str, str]) -> float:
    """Return when the command began, in seconds on CLOCK_MONOTONIC: its parent if that started this rank, else this process."""
    own_s = process_began_s()
    try:
        began_s = float(env[BEGAN]) if "COLLBENCH_LOCAL" in env else own_s
    except (KeyError, ValueError):
        return own_s
    return began_s if began_s <= own_s else own_s


def process_began_s() -> float:
    """Return when this process began (proc(5), /proc/self/stat, field 22: ticks since boot); now, where that is unknown."""
    now_s = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        return min(now_s, now_s - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return now_s


_FATAL = frozenset({signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL})
_AFTER_ABORT = 128  # prterun adds it to the signal's number


def possible_signal(code: int, family: str) -> signal.Signals | None:
    """Return the signal that may have killed a rank, from mpiexec's exit code; None if it shows none.

    MPICH's hydra returns the signal's number, and prterun 128 + the number: both are exit codes of programs too. Hydra also joins the
    exit codes of several ranks by OR. Intel MPI's hydra returns 255. Codes above 128 of MPICH are the error codes of its library, like
    143 of MPI_Init. So is 15, which is also the signal with which hydra ends the other ranks.
    """
    if family == "Open MPI":
        code -= _AFTER_ABORT
    elif family != "MPICH":
        return None
    return signal.Signals(code) if code in _FATAL else None


def exit_meaning(code: int, family: str, subject: str = "") -> str:
    """Return what mpiexec's own exit code means, for a launch of which no rank stored its exit code.

    family: of mpiexec, see `mpiexec_family`; subject: the rank that ended first, if that is known.
    """
    number = possible_signal(code, family)
    meaning = f"mpiexec ended with code {code}"
    if number is not None:
        meaning += f", an exit code or signal {number.value} ({number.name})"
    if subject:
        meaning += f": {subject} ended first: killed, crashed, exited or ended by MPI"
    return meaning


PROGRAM = (sys.executable, "-P", "-m", "collbench")  # -P: no import from the current directory, in which other users may write
_LONGEST_FOLDER = 80  # a Unix socket's path has at most 107 bytes


def start_local(
    argv: Sequence[str],
    ranks: int,
    *,
    env: Mapping[str, str],
    mpiexec: Path | None = None,
    program: Sequence[str] = PROGRAM,
    grace_s: float = GRACE_S,
) -> int:
    """Run `program argv…` as `ranks` ranks on this host, as child processes or through mpiexec, and return their common exit code.

    Each rank gets its place from COLLBENCH_LOCAL and COLLBENCH_RANKS, and from COLLBENCH_RANK or its mpiexec.
    """
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: must be 1 or more")
    folder = _private_folder()
    try:
        shared = {**env, **_terminal_variables(env), "COLLBENCH_LOCAL": str(folder), "COLLBENCH_RANKS": str(ranks)}
        for stale in ("COLLBENCH_RANK", "COLLBENCH_WORKER"):
            shared.pop(stale, None)
        if mpiexec:
            return _through_mpiexec(command(mpiexec, ranks, [*program, *argv]), ranks, shared, folder, grace_s)
        alone = without_manager(shared)
        children = [SupervisedProcess(f"rank {i}", [*program, *argv], {**alone, "COLLBENCH_RANK": str(i)}) for i in range(ranks)]
        supervisor = Supervisor(children, grace_s=grace_s)
        code = supervisor.run()
        _report_for_rank_0(supervisor.signal, folder)
        return code
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _show_cursor()


def node_workers(
    info: LaunchInfo, k: int, argv: Sequence[str], env: Mapping[str, str], *, program: Sequence[str] = PROGRAM, grace_s: float = GRACE_S
) -> int:
    """Run this node's `k` ranks under one task per node, and return their exit code.

    Raises UsageError if that is not possible.
    """
    if k < 1:
        raise UsageError(f"--ranks-per-node {k}: must be 1 or more")
    if info.local_ranks != 1:
        raise UsageError(f"--ranks-per-node needs one task per node, but {info.launcher} started {info.local_ranks} here: drop it")
    if info.meeting == "mpi":
        raise UsageError("--ranks-per-node under mpirun on several hosts needs the host of rank 0: export MASTER_ADDR")
    shared = {**without_manager(env), **_terminal_variables(env)}
    workers = [_worker(info, k, i) for i in range(k)]
    children = [
        SupervisedProcess(f"rank {worker.rank}", [*program, *argv], {**shared, "COLLBENCH_WORKER": to_variable(worker)})
        for worker in workers
    ]
    return Supervisor(children, grace_s=grace_s).run()


def _worker(info: LaunchInfo, k: int, i: int) -> LaunchInfo:
    facts = {**info.facts, "worker": str(k)}
    return replace(info, rank=info.rank * k + i, ranks=info.ranks * k, local_rank=i, local_ranks=k, mpi=None, facts=facts)


def default_ranks(gpus: int, per_process: int | None = None) -> int:
    """Return the default number of ranks of a local start: one per visible GPU if there are at least 2, else 2.

    per_process: how many GPUs each process drives, if any. Then no GPU is shared, and all are used. Raises UsageError if the
    GPUs cannot be divided evenly.
    """
    if per_process is None:
        return max(2, gpus)
    if gpus < per_process:
        raise UsageError(
            f"-g {per_process} needs {per_process} GPUs for each process, but {gpus} {'is' if gpus == 1 else 'are'} visible: use a "
            "smaller number"
        )
    if gpus % per_process:
        raise UsageError(f"-g {per_process} leaves {gpus % per_process} of {gpus} GPUs idle: use a divisor of {gpus}, or --ranks N")
    return gpus // per_process


class Terminal(msgspec.Struct, frozen=True):
    """The user's stdout and stderr: whether they are terminals, and `columns`, None if not known."""

    stdout: bool
    stderr: bool
    columns: int | None


def terminal(env: Mapping[str, str]) -> Terminal:
    """Return the user's stdout and stderr: from the parent (COLLBENCH_TTY), else this process's own.

    Under mpiexec a rank cannot detect it: hydra pipes all output, and prterun gives each rank a pseudo-terminal even
    for a file.
    """
    terminals = env.get("COLLBENCH_TTY")
    columns = number(env, "COLUMNS", 0) if env.get("COLUMNS", "").isdigit() else 0
    if terminals is not None:
        return Terminal("stdout" in terminals, "stderr" in terminals, columns or None)
    if "OMPI_COMM_WORLD_RANK" in env:
        return Terminal(False, False, columns or None)
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):  # not a terminal, or closed; the other stream may be one
            columns = columns or (os.get_terminal_size(stream.fileno()).columns if stream else 0)
    return Terminal(sys.stdout.isatty(), sys.stderr.isatty(), columns or None)


def _terminal_variables(env: Mapping[str, str]) -> dict[str, str]:
    user_terminal = terminal(env)
    names = [name for name, is_terminal in (("stdout", user_terminal.stdout), ("stderr", user_terminal.stderr)) if is_terminal]
    variables = {"COLLBENCH_TTY": ",".join(names) or "0"}
    return {**variables, "COLUMNS": str(user_terminal.columns)} if names and user_terminal.columns else variables


def record_start(env: Mapping[str, str]) -> None:
    """Store this rank's PID for the parent, which knows only mpiexec's. Does nothing outside a local start."""
    _record("pid", os.getpid(), env)


def record_exit(code: int, env: Mapping[str, str]) -> None:
    """Store this rank's exit code for the parent, because mpiexec does not keep it (hydra ORs codes, or loses them).

    Each rank calls it last. Does nothing outside a local start.
    """
    _record("exit", code, env)


@contextlib.contextmanager
def recorded_opening(backend: str, env: Mapping[str, str]) -> Iterator[None]:
    """Store for the parent of a start on this host that this rank opens the backend, for the block."""
    folder = env.get("COLLBENCH_LOCAL", "")
    if not Path(folder).is_dir() or not folder:
        yield
        return
    mark = Path(folder) / f"opening-{os.getpid()}"
    mark.write_text(backend, encoding="utf-8")
    try:
        yield
    finally:
        mark.unlink(missing_ok=True)


def await_exits(env: Mapping[str, str], within_s: float = 1.0) -> bool:
    """Wait until all ranks of a local start have recorded their exit codes, for at most `within_s`. Return whether they have."""
    folder = env.get("COLLBENCH_LOCAL")
    ranks = env.get("COLLBENCH_RANKS", "")
    end = time.monotonic() + within_s
    while folder and ranks.isdigit() and time.monotonic() < end:
        if sum(1 for _ in Path(folder).glob("exit-*")) >= int(ranks):
            return True
        time.sleep(0.005)
    return False


def code_for_launcher(code: int, env: Mapping[str, str]) -> int:
    """Return the code with which this rank of a local start should end, after it has recorded its own.

    After a usage error, all ranks end together. Under hydra they end with 0: it kills the other ranks when one ends with an error
    code, and prints a banner on stdout if one of them is still ending. The parent returns the recorded codes.
    """
    together = code == USAGE and await_exits(env)
    return FINE if together and "PMI_RANK" in env else code


def record_run(folder: Path, env: Mapping[str, str]) -> None:
    """Store the run folder's name for the parent, which reports it if rank 0 is killed."""
    _record("run", folder, env)


def _record(kind: str, value: int | Path, env: Mapping[str, str]) -> None:
    folder = env.get("COLLBENCH_LOCAL")
    rank = next((env[name] for name in ("COLLBENCH_RANK", *_MPI_RANKS) if name in env), None)
    if folder and rank and rank.isdigit() and Path(folder).is_dir():
        part = Path(folder) / f"part-{rank}"
        part.write_text(str(value), encoding="utf-8", errors="surrogateescape")
        part.rename(Path(folder) / f"{kind}-{rank}")


_MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


def _show_cursor() -> None:
    """Show the terminal's cursor again, if rank 0 was killed and could not do so."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
            with contextlib.suppress(OSError):
                stream.write("\x1b[?25h")
                stream.flush()
            return


def _private_folder() -> Path:
    where = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="collbench-", dir=where if len(where) < _LONGEST_FOLDER else "/tmp"))
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32), encoding="ascii")
    return folder


def _through_mpiexec(command: Sequence[str], ranks: int, env: Mapping[str, str], folder: Path, grace_s: float) -> int:
    child = SupervisedProcess("mpiexec", command, environment(without_scheduler(env)), launches=True)
    seen: set[Path] = set()
    began_s = time.time()

    def failed() -> bool:
        for path in set(folder.glob("pid-*")) - seen:
            seen.add(path)
            pid = path.read_text(encoding="ascii")
            supervisor.watch(f"rank {path.name.removeprefix('pid-')} (pid {pid})", int(pid))
        return any(_recorded(folder))

    supervisor = Supervisor([child], grace_s=grace_s, failed_elsewhere=failed)
    code = supervisor.run()
    if code:
        remove_left(began_s)
    if supervisor.signal is not None:
        _report_for_rank_0(supervisor.signal, folder)
        return code
    recorded = _recorded(folder)
    if code == FINE or any(recorded) or len(recorded) == ranks:
        return _outcome(code, recorded, ranks)
    if supervisor.is_output_closed:  # mpiexec passes on the output of the ranks, so it has ended, and the ranks with it
        return code
    family = mpiexec_family(Path(command[0]))
    meaning = exit_meaning(code, family, next(iter(supervisor.ends), ""))
    hint = shortage_behind(possible_signal(code, family))
    opening = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("opening-*"))]
    if opening:  # ranks ended while they opened a backend
        raise crash_in_opening(opening[0], meaning, hint)
    report_error(f"{meaning}; {hint or 'see what was printed above'}{_where_stored(folder)}")
    return FAILED


def _where_stored(folder: Path) -> str:
    """Return "; what was measured is in runs/x" for a launch that has a run folder, else ""."""
    run = folder / "run-0"
    return f"; what was measured is in {run.read_text(encoding='utf-8', errors='surrogateescape')}" if run.exists() else ""


def _report_for_rank_0(number: int | None, folder: Path) -> None:
    """Report that a signal ended the launch, if rank 0 was killed before it could. A rank with a stored exit code has reported it."""
    if number is None or (folder / "exit-0").exists():
        return
    results = _where_stored(folder) or "; nothing was measured"
    report_error(f"interrupted by {name_of(number)}, and rank 0 was killed before it could report{results}")


def _recorded(folder: Path) -> list[int]:
    """Return the exit codes that ranks stored, in the order of their ends."""
    paths = sorted(folder.glob("exit-*"), key=lambda path: path.stat().st_mtime_ns)
    return [int(path.read_text(encoding="ascii")) for path in paths]


def _outcome(code: int, recorded: Sequence[int], ranks: int) -> int:
    """Return the exit code of a launch: the first failure that a rank stored. mpiexec's own code does not matter after that."""
    failed = next((stored_code for stored_code in recorded if stored_code != FINE), None)
    if failed is not None:
        return failed
    if code == FINE and 0 < len(recorded) < ranks:
        report_error(f"mpiexec ended with code 0, but only {len(recorded)} of {ranks} ranks reached their end")
        return FAILED
    return FINE
