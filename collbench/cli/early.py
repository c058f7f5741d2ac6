"""What one process can find out before ranks start: the planned cases, whether they can be measured and fit, and the run to resume."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import backend_class, missing_backend
from collbench.errors import FINE, NEGATIVE, NO_VERDICT, UsageError
from collbench.operations.case import Case
from collbench.operations.registry import operations
from collbench.operations.sweep import CPU, Sweeps
from collbench.plugin import record_files
from collbench.results.reader import read_run
from collbench.untrusted import dict_of

if TYPE_CHECKING:
    from collbench.backends.backend import Backend
    from collbench.measuring.open_backends import PlannedCase
    from collbench.measuring.request import Placement, Request, TaskRequest
    from collbench.operations.operation import Operation
    from collbench.reason import Fact
    from collbench.report.dry_run import Planned
    from collbench.report.progress import Output
    from collbench.results.reader import Run
    from collbench.results.row import CaseKey


# The cases: those of a dry run, and whether they can be measured.


def plan_cases(request: TaskRequest, placement: Placement) -> Planned:
    """Return the cases that would be measured. Raises UsageError if a run would, before ranks start."""
    from collbench.report.dry_run import Planned

    launch, ranks = request.launch, placement.processes
    launch.check_options()
    launch.check_installed()
    missing = {name: why for name in launch.backends if (why := missing_backend(name))}
    labelled = [(label, case) for label, case, _ in _cases(launch, ranks, checks_ranks=True)]
    if not labelled:
        raise UsageError(
            f"no backend of this {'suite' if launch.suite else 'command'} is installed: `collbench backends` shows how to install one"
        )
    run = earlier_run(launch)
    left = labelled
    if run and run.rows:
        from collbench.measuring.resume import key_of

        keys = {key_of(row) for row in run.rows}
        hosts = run.info.get("hosts")
        nodes = len(hosts) if isinstance(hosts, list) else 1
        left = [(label, case) for label, case in labelled if not _is_stored(case, (launch.ranks_of(case.backend, ranks), nodes), keys)]
    if placement.is_here:
        check_cases(launch, ranks)
    return Planned(
        title=f"suite {launch.suite['name']}" if launch.suite else launch.command, ranks=ranks, cases=left,
        max_time_s=launch.budget.max_time_s, total_s=launch.budget.total_s, wall_s=launch.budget.wall_s, launches=launch.launches,
        done=len(labelled) - len(left), known_s=_seconds_per_case(run) if run else None, known_from=str(launch.earlier or ""),
        notes=[f"{name} is skipped: {why}" for name, why in missing.items()],
    )  # fmt: skip


def _cases(request: Request, processes: int, *, checks_ranks: bool = False) -> Iterator[tuple[str, Case, Backend]]:
    """Yield the cases of the backends that are installed, each with its sweep's name or index, and its backend, which is not open."""
    for name in request.backends:
        if missing_backend(name):
            continue
        backend: Backend = backend_class(name)()
        backend.ranks = request.ranks_of(name, processes)
        if checks_ranks:
            request.sweep.check_ranks(backend.ranks)
        if isinstance(request.sweep, Sweeps):
            for sweep, case in request.sweep.placed_cases(name, backend.ranks):
                yield sweep.where, case, backend
        else:
            for case in request.sweep.cases(name, backend.ranks):
                yield request.command, case, backend


def check_cases(request: Request, processes: int) -> None:
    """Raise UsageError if no case can be measured by so many processes on this host, for a reason that needs no open library.

    Likewise for a --slowed without effect.
    """
    reasons: dict[str, None] = {}
    for _, case, backend in _cases(request, processes):
        reason = _unsupported(backend, operations()[case.operation], case)
        if reason is None:
            break
        reasons[reason.render()] = None
    else:
        if reasons:
            more = f" (the first of {len(reasons)} reasons)" if len(reasons) > 1 else ""
            raise UsageError(f"no case can be measured: {next(iter(reasons))}{more}")
    if request.slowed:
        cases = list(_cases(request, processes))
        if cases:
            request.slowed.check([case for _, case, _ in cases], max(backend.ranks for _, _, backend in cases))


def check_sizes(request: Request, processes: int) -> None:
    """Raise UsageError for requested sizes that do not fit the memory of this host. Default sizes that do not fit are left out later."""
    sizes = [size for sweep in request.sweep.each for size in sweep.sizes or ()]
    if max(sizes, default=0) <= CPU.largest:  # the usual start needs no further import
        return
    from collbench.measuring.memory import too_large
    from collbench.measuring.open_backends import OpenBackend

    work: list[PlannedCase] = []
    for _, case, backend in _cases(request, processes):
        operation = operations()[case.operation]
        if case.device == "cpu" and _unsupported(backend, operation, case) is None:
            work.append((operation, case, OpenBackend(backend.name, backend)))
    wrong = too_large(work, socket.gethostname(), processes)
    if wrong:
        raise UsageError(wrong)


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


# The run to resume.


def earlier_run(request: Request, options: Mapping[str, Any] | None = None) -> Run | None:
    """Return the run to resume, or None. Raises UsageError for a run of another request, or of another collbench.

    options: of a kind of run other than cases
    """
    earlier = request.earlier
    if earlier is None:
        return None
    from collbench.measuring.resume import refusal, request_difference

    run = read_run(earlier)
    found = request_difference(run.info, request, options)
    if found:
        raise UsageError(refusal(earlier, found))
    return run


def _is_stored(case: Case, size: tuple[int, int], keys: Set[CaseKey]) -> bool:
    """Return whether there is a row of the case, placed as requested or as the library supports it. size: ranks and nodes."""
    from collbench.measuring.resume import key_of
    from collbench.measuring.row import row_without

    choices = [case] if case.in_place is not None else [case.placed(False), case.placed(True)]
    return any(key_of(row_without(operations()[case.operation], choice, "", size, "")) in keys for choice in choices)


def _seconds_per_case(run: Run) -> float | None:
    """Return the mean seconds per case, by calendar time; None if the run was resumed, or its end is not recorded."""
    if "resumed" in run.info or not run.rows:
        return None
    first, last = _time(run.info.get("started_utc")), _time(run.info.get("finished_utc") or (run.events or [{}])[-1].get("utc"))
    return (last - first) / len(run.rows) if first is not None and last is not None and last > first else None


def _time(text: Any) -> float | None:
    from datetime import datetime

    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def report_finished(request: Request, output: Output) -> int | None:
    """Print the results of the run to resume if nothing of it is left to measure, and return its exit code; else return None.

    Raises UsageError for a run of other options.
    """
    path = request.earlier
    if path is None:
        return None
    from collbench.cli.launches import print_lines
    from collbench.measuring.resume import resumed_note, same_command

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
    print_lines(resumed_note(str(path), records, None, what, complete=True), output)
    report_run([path], None, output.format, sys.stdout, color=output.color, trace=request.trace, view=output.view, measured=str(path))
    print_lines(f"run folder: {path}", output)
    return int(code)
