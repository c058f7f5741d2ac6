"""--dry-run of the commands that measure cases: the planned ones; and the run to resume, of which all plans leave out what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from collbench.backends.registry import missing_backend
from collbench.errors import UsageError
from collbench.operations.case import Case
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweeps

if TYPE_CHECKING:
    from collbench.measuring.request import Placement, Request, TaskRequest
    from collbench.report.dry_run import Planned
    from collbench.results.reader import Run


def plan_cases(request: TaskRequest, placement: Placement) -> Planned:
    """Return the cases of the request. Raises UsageError if a run would, before ranks start."""
    launch = request.launch
    launch.check_options()
    planned = plan(launch, placement.processes)
    if placement.is_here:
        from collbench.cli.early import check_cases

        check_cases(launch, placement.processes)
    return planned


def plan(request: Request, ranks: int) -> Planned:
    """Return the cases that the request would measure with so many processes. Raises UsageError as `plan_cases` does."""
    from collbench.report.dry_run import Planned

    request.check_installed()
    missing = {name: why for name in request.backends if (why := missing_backend(name))}
    labelled = [each for name in request.backends if name not in missing for each in _cases(request, name, ranks)]
    if not labelled:
        raise UsageError(
            f"no backend of this {'suite' if request.suite else 'command'} is installed: `collbench backends` shows how to install one"
        )
    run, title = earlier_run(request), f"suite {request.suite['name']}" if request.suite else request.command
    stored = _Stored(run)
    left = [(label, case) for label, case in labelled if not stored.has(case, request.ranks_of(case.backend, ranks))]
    return Planned(
        title=title, ranks=ranks, cases=left, max_time_s=request.budget.max_time_s, total_s=request.budget.total_s,
        wall_s=request.budget.wall_s, launches=request.launches,
        done=len(labelled) - len(left), known_s=_seconds_per_case(run) if run else None, known_from=str(request.earlier or ""),
        notes=[f"{name} is skipped: {why}" for name, why in missing.items()],
    )  # fmt: skip


def _cases(request: Request, backend: str, processes: int) -> Sequence[tuple[str, Case]]:
    """Return the backend's cases, each with its sweep's name or index."""
    n = request.ranks_of(backend, processes)
    request.sweep.check_ranks(n)
    if not isinstance(request.sweep, Sweeps):
        return [(request.command, case) for case in request.sweep.cases(backend, n)]
    return [(sweep.where, case) for sweep, case in request.sweep.placed_cases(backend, n)]


def earlier_run(request: Request, options: Mapping[str, Any] | None = None) -> Run | None:
    """Return the run to resume, or None. Raises UsageError for a run of another request, or of another collbench.

    options: of a kind of run other than cases
    """
    from collbench.measuring.resume import refusal, request_difference
    from collbench.results.reader import read_run

    earlier = request.earlier
    if earlier is None:
        return None
    run = read_run(earlier)
    found = request_difference(run.info, request, options)
    if found:
        raise UsageError(refusal(earlier, found))
    return run


class _Stored:
    """The stored cases of the run to resume, if there is one."""

    def __init__(self, run: Run | None) -> None:
        from collbench.measuring.resume import key_of

        hosts = run.info.get("hosts") if run else None
        self._nodes = len(hosts) if isinstance(hosts, list) else 1
        self._keys = {key_of(row) for row in run.rows} if run else set()

    def has(self, case: Case, n: int) -> bool:
        """Return whether there is a row of the case, placed as requested or as the library supports it."""
        from collbench.measuring.resume import key_of
        from collbench.measuring.row import row_without

        if not self._keys:
            return False
        choices = [case] if case.in_place is not None else [case.placed(False), case.placed(True)]
        rows = (row_without(operations()[case.operation], one, "", (n, self._nodes), "") for one in choices)
        return any(key_of(row) in self._keys for row in rows)


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
