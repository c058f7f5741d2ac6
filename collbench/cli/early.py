"""What one process can find out before ranks start: whether a case can be measured and fits, and whether a run to resume has ended."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from collbench.backends.registry import missing_backend
from collbench.cli import launches
from collbench.errors import FINE, NEGATIVE, NO_VERDICT, UsageError
from collbench.operations.registry import operations
from collbench.operations.sweep import CPU
from collbench.plugin import record_files
from collbench.results.reader import read_run
from collbench.untrusted import dict_of

if TYPE_CHECKING:
    from collbench.backends.backend import Backend
    from collbench.measuring.open_backends import Work
    from collbench.measuring.request import Request
    from collbench.operations.case import Case
    from collbench.operations.operation import Operation
    from collbench.reason import Fact
    from collbench.report.progress import Output


def report_finished(request: Request, output: Output) -> int | None:
    """Print the results of the run to resume if nothing of it is left to measure, and return its exit code; else return None.

    Raises UsageError for a run of other options.
    """
    from collbench.cli.dry_run import earlier_run
    from collbench.measuring.resume import resumed_note, same_command

    path = request.earlier
    if path is None:
        return None
    # the options of other kinds than cases are compared when the ranks have joined
    run = (earlier_run(request) if request.sweep.operations else None) or read_run(path)
    code = run.info.get("exit_code")
    file = record_files().get(str(run.info.get("operation")))
    if code not in (FINE, NEGATIVE, NO_VERDICT) or not run.finished or not same_command(run.info, request):
        return None
    records = len(run.rows)
    planned = dict_of(run.info.get("asked")).get("cells") if file is None else None
    if planned is not None and planned != records:  # its time was over
        return None
    if file is not None:
        records = (path / file.name).read_bytes().count(b"\n") if (path / file.name).is_file() else 0
    if run.info.get("rows") != records:  # some were removed
        return None
    from collbench.report.runs import report_run

    what = file.unit if file else "case"
    launches.print_lines(resumed_note(str(path), records, None, what, complete=True), output)
    report_run([path], None, output.format, sys.stdout, color=output.color, trace=request.trace, view=output.view, measured=str(path))
    launches.print_lines(f"run folder: {path}", output)
    return int(code)


def check_cases(request: Request, processes: int) -> None:
    """Raise UsageError if no case can be measured by so many processes on this host, for a reason that needs no open library.

    Likewise for a --slowed without effect.
    """
    reasons: dict[str, None] = {}
    for operation, case, backend in _work(request, processes):
        reason = _unsupported(backend, operation, case)
        if reason is None:
            break
        reasons[reason.render()] = None
    else:
        if reasons:
            more = f" (the first of {len(reasons)} reasons)" if len(reasons) > 1 else ""
            raise UsageError(f"no case can be measured: {next(iter(reasons))}{more}")
    if request.slowed:
        work = list(_work(request, processes))
        if work:
            request.slowed.check([case for _, case, _ in work], max(backend.ranks for _, _, backend in work))


def check_sizes(request: Request, processes: int) -> None:
    """Raise UsageError for requested sizes that do not fit the memory of this host. Default sizes that do not fit are left out later."""
    sizes = [size for sweep in request.sweep.each for size in sweep.sizes or ()]
    if max(sizes, default=0) <= CPU.largest:  # the usual start needs no further import
        return
    from collbench.measuring.memory import too_large
    from collbench.measuring.open_backends import OpenBackend

    work: list[Work] = []
    for operation, case, backend in _work(request, processes):
        if case.device == "cpu" and _unsupported(backend, operation, case) is None:
            work.append((operation, case, OpenBackend(backend.name, backend)))
    wrong = too_large(work, socket.gethostname(), processes)
    if wrong:
        raise UsageError(wrong)


def _work(request: Request, processes: int) -> Iterator[tuple[Operation, Case, Backend]]:
    """Yield the cases of the backends that are installed, each with its backend, which is not open."""
    from collbench.backends.registry import backend_class

    for name in request.backends:
        if missing_backend(name):
            continue
        backend: Backend = backend_class(name)()
        backend.ranks = request.ranks_of(name, processes)
        for case in request.sweep.cases(name, backend.ranks):
            yield operations()[case.operation], case, backend


def _unsupported(backend: Backend, operation: Operation, case: Case) -> Fact | None:
    """Return why the case cannot be measured here, as far as that is known while the backend is not open."""
    from collbench.backends.backend import unsupported_by_kind

    return _no_device(backend, case) or unsupported_by_kind(backend, operation, case)


def _no_device(backend: Backend, case: Case) -> Fact | None:
    from collbench.backends.gpu_memory import HostOrGpuBackend, no_gpu
    from collbench.operations.unsupported import DeviceUnsupported

    if case.device in backend.devices:
        return None
    cause = ""
    if case.device == "cuda" and isinstance(backend, HostOrGpuBackend):
        missing = no_gpu()
        if missing is None:  # the library decides when it is open
            return None
        cause = f"{backend.name} has no GPU here: {missing}"
    return DeviceUnsupported(backend.name, case.device, tuple(sorted(backend.devices)), cause)
