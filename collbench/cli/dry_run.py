"""--dry-run of the measuring commands: print the cases, rounds or exchanges that would be measured, without starting ranks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from collbench.cli.request import check_options, local_ranks, node_ranks
from collbench.cli.start import check_installed, missing_backend
from collbench.errors import UsageError
from collbench.operations.case import Case
from collbench.operations.registry import operations
from collbench.operations.sweep import Sweeps
from collbench.units import format_duration, plural

if TYPE_CHECKING:
    from collbench.launch.info import LaunchInfo
    from collbench.measuring.request import Request
    from collbench.operations.groups import Schedule
    from collbench.plugins.hunt.places import HuntRequest, PairsRequest, Places
    from collbench.plugins.load.task import LoadRequest
    from collbench.plugins.traces.recording import Recording
    from collbench.plugins.traces.replay_task import ReplayRequest
    from collbench.plugins.training.step_task import Training
    from collbench.plugins.training.task import WorkloadRequest
    from collbench.plugins.training.text import PlannedStep
    from collbench.report.dry_run import Planned, PlannedRounds
    from collbench.results.reader import Run


def show(request: Request, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the plan, at rank 0 of a launch. Return 0. Raises UsageError if `run` would, before ranks start."""
    from collbench.report.dry_run import write_dry_run

    check_options(request, arguments.gdr_check)
    if info and info.rank:
        return 0
    ranks = info.ranks * (arguments.ranks_per_node or node_ranks(request, info, env)) if info else local_ranks(request, env)
    planned = plan(request, ranks)
    if info is None:
        from collbench.cli.early import check_cases

        check_cases(request, ranks)
    write_dry_run(planned, arguments.format, sys.stdout, None if arguments.quiet else sys.stderr)
    return 0


def plan(request: Request, ranks: int) -> Planned:
    """Return the cases that the request would measure with so many processes. Raises UsageError as `show` does."""
    from collbench.report.dry_run import Planned

    check_installed(request)
    missing = {name: why for name in request.backends if (why := missing_backend(name))}
    labelled = [each for name in request.backends if name not in missing for each in _cases(request, name, ranks)]
    if not labelled:
        raise UsageError(
            f"no backend of this {'suite' if request.suite else 'command'} is installed: `collbench backends` shows how to install one"
        )
    run, title = earlier_run(request), f"suite {request.suite['name']}" if request.suite else request.command
    stored = _Stored(run)
    left = [(label, case) for label, case in labelled if not stored.has(case, ranks_of(request, case.backend, ranks))]
    return Planned(
        title=title, ranks=ranks, cases=left, max_time_s=request.budget.max_time_s, total_s=request.budget.total_s,
        wall_s=request.budget.wall_s, launches=request.launches,
        done=len(labelled) - len(left), known_s=_seconds_per_case(run) if run else None, known_from=str(request.earlier or ""),
        notes=[f"{name} is skipped: {why}" for name, why in missing.items()],
    )  # fmt: skip


def ranks_of(request: Request, backend: str, processes: int) -> int:
    """Return how many ranks a backend would have. If it needs GPUs, each process has as many ranks as GPUs."""
    return processes * (request.gpus_per_process if request.sweep.defaults(backend).device == "cuda" else 1)


def _cases(request: Request, backend: str, processes: int) -> Sequence[tuple[str, Case]]:
    """Return the backend's cases, each with its sweep's name or index."""
    n = ranks_of(request, backend, processes)
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


# The rounds of pairs runs and hunts, and the steps of workloads.


def show_pairs(request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the rounds of a pairs run, at rank 0 of a launch. Return 0. Raises UsageError for options that do not fit."""
    from collbench.measuring.resume import stored_order_seed
    from collbench.plugins.hunt.places import sampled
    from collbench.plugins.hunt.records import read_pairs
    from collbench.report.dry_run import PlannedRounds

    run = earlier_run(request.launch, request.options)
    seed = stored_order_seed(run.path) if run else request.launch.order_seed
    places, schedule = planned_pairs(request, arguments, info, env, seed or 0)
    stored = read_pairs(run) if run else None
    met = {pair for one in stored.rounds for pair in one.pairs} if stored else set()
    left = [(number, [pair for pair in pairs if pair not in met]) for number, pairs in enumerate(schedule.rounds())]
    parts = [{"round": number + 1, "pairs": len(pairs), f"{places.by}s": pairs} for number, pairs in left if pairs]
    sample = sampled(request, schedule, schedule.pairs)
    notes = [
        *([sample.render()] if sample else []), *([places.idle.render()] if places.idle else []),
        *(["without --seed, which pairs meet in which round is drawn at the start"] if run is None and seed is None else []),
        *([f"{run.path} has {plural(len(met), 'more pair')}"] if run and met else []),
        "suspects are measured again in further rounds",
    ]  # fmt: skip
    pairs = sum(len(pairs) for _, pairs in left)
    title = f"pairs of {places.n} {places.by}s: {plural(pairs, 'pair')} in {plural(len(parts), 'round')}"
    return _show_rounds(PlannedRounds(title, parts, len(parts), request.launch.budget.max_time_s, notes), arguments, info)


def show_hunt(request: HuntRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the stages of a hunt, at rank 0 of a launch. Return 0. Raises UsageError for options that do not fit."""
    from collbench.plugins.hunt.records import read_hunt
    from collbench.report.dry_run import PlannedRounds

    places, each, crossed = planned_stages(request, arguments, info, env)
    run = earlier_run(request.pairs.launch, {**request.options, "--cover-links": crossed.get("crossed")})
    met = len(read_hunt(run).rounds) if run else 0
    rounds = max(0, sum(each.values()) - met)
    notes = [
        *([places.idle.render()] if places.idle else []), *([f"{run.path} has {plural(met, 'more round')}"] if run and met else []),
        *([] if places.by == "rank" else ["a confirmed node is also measured over each interface that all nodes have"]),
        "most hunts end after far fewer rounds",
    ]  # fmt: skip
    title = f"hunt among {places.n} {places.by}s: at most {plural(rounds, 'round')}"
    parts = [{"stage": stage, "most_rounds": most} for stage, most in each.items() if most]
    return _show_rounds(PlannedRounds(title, parts, rounds, request.pairs.launch.budget.max_time_s, notes), arguments, info)


def planned_pairs(
    request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str], seed: int = 0
) -> tuple[Places, Schedule]:
    """Return the places and the schedule of a pairs run. Raises UsageError for options that do not fit the ranks."""
    from collbench.plugins.hunt.places import schedule_of

    places, by_host = _places(request, arguments, info, env)
    return places, schedule_of(request, places, by_host, seed)


def planned_stages(
    request: HuntRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]
) -> tuple[Places, Mapping[str, int], Mapping[str, Any]]:
    """Return the places of a hunt, the most rounds of each stage, and the results of a link file. Raises UsageError as a hunt does."""
    from collbench.plugins.hunt.hunt_strategy import options_of
    from collbench.plugins.hunt.strategy import stages

    places, _ = _places(request.pairs, arguments, info, env)
    known = {"places": list(places.names), "hosts": list(places.hosts), "ranks_per_place": places.width}
    options, crossed = options_of(arguments, {**known, "no_groups": None, "nics": []})
    return places, stages(places.n, options), crossed


def _show_rounds(planned: PlannedRounds, arguments: argparse.Namespace, info: LaunchInfo | None) -> int:
    from collbench.report.dry_run import write_planned_rounds

    if not (info and info.rank):
        write_planned_rounds(planned, arguments.format, sys.stdout, None if arguments.quiet else sys.stderr)
    return 0


def _places(
    request: PairsRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]
) -> tuple[Places, list[list[int]]]:
    """Return (the planned places, the ranks of each host). Raises UsageError for fewer than two places."""
    import socket

    from collbench.plugins.hunt.places import places_of

    check_installed(request.launch)
    host_of = planned_hosts(request.launch, arguments, info, env)
    by_host = [[rank for rank, host in enumerate(host_of) if host == each] for each in range(max(host_of) + 1)]
    names = [socket.gethostname()] if info is None else list(info.hosts)
    hosts = names if len(names) == len(by_host) else [f"node {place}" for place in range(len(by_host))]
    return places_of(request, hosts, by_host), by_host


def planned_hosts(request: Request, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> tuple[int, ...]:
    """Return the host of each planned rank. The ranks fill one host after the other."""
    if info is None:
        processes = local_ranks(request, env)
        per_host = arguments.ranks_per_node or processes
    else:
        each = arguments.ranks_per_node or node_ranks(request, info, env)
        processes, per_host = info.ranks * each, info.local_ranks * each
    return tuple(rank // (per_host * request.gpus_per_process) for rank in range(processes * request.gpus_per_process))


def show_workload(workload: WorkloadRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the exchanges of each step and the estimated time, for ranks that fill one host after the other. Return 0.

    Raises UsageError for a training that does not fit.
    """
    from collbench.plugins.training.records import read_workload
    from collbench.plugins.training.text import write_plan
    from collbench.report.screen import write_line

    if info and info.rank:
        return 0
    request = workload.launch
    run = earlier_run(request, workload.options)
    planned, left_out = planned_steps(workload.trainings, planned_hosts(request, arguments, info, env))
    backends = [name for name in request.backends if not missing_backend(name)]
    stored = {(row.regime, row.backend) for row in read_workload(run)[1]} if run else set()
    left = sum((step.regime.name, name) not in stored for step in planned for name in backends)
    computing = sum((step.regime.name, name) not in stored and workload.compute and step.regime.with_computing is not None
                    for step in planned for name in backends)  # fmt: skip
    longest = format_duration(ceil((left + computing) * request.budget.max_time_s))
    remarks = [
        *left_out, *([f"{run.path} has {plural(len(stored), 'more row')}"] if run and stored else []),
        *([f"{plural(computing, 'row')} also measured with computing, which takes the same time again"] if computing else []),
        f"at most {longest} of samples: {plural(left, 'row')} × {request.budget.max_time_s:g} s of --max-time; start-up, references and "
        "verification come on top",
    ]  # fmt: skip
    write_plan(planned, arguments.format, sys.stdout)
    for sentence in () if arguments.quiet else remarks:
        write_line(sys.stderr, sentence)
    return 0


def show_load(load: LoadRequest, arguments: argparse.Namespace, info: LaunchInfo | None, env: Mapping[str, str]) -> int:
    """Print the victims, the aggressors and the estimated time, at rank 0 of a launch. Return 0. Raises UsageError for bad sides."""
    from collbench.plugins.load.task import sides_of
    from collbench.report.dry_run import PlannedRounds

    check_installed(load.launch)
    hosts = planned_hosts(load.launch, arguments, info, env)
    names = list(info.hosts) if info and len(info.hosts) == max(hosts) + 1 else [f"node {place}" for place in range(max(hosts) + 1)]
    sides = sides_of(load, [names[place] for place in hosts])
    parts = [
        {
            "aggressors": "+".join(mix),
            "percent": round(100 * level, 3),
            "victim_ranks": list(sides.victims),
            "aggressor_ranks": list(sides.others),
        }
        for mix, level in load.rows
    ]
    notes = [f"{load.victim.name} is timed in {plural(load.blocks, 'pair')} of blocks per row; finding the full rates comes on top"]
    title = f"load of {plural(len(parts), 'row')}"
    return _show_rounds(PlannedRounds(title, parts, len(parts), load.launch.budget.max_time_s, notes), arguments, info)


def show_replay(replay: ReplayRequest, recording: Recording, arguments: argparse.Namespace) -> int:
    """Print the exchanges of the step, the ranks that it needs, and what the trace does not contain. Return 0."""
    from collbench.plugins.traces.replay_task import training_of
    from collbench.plugins.traces.replay_text import trace_sentences
    from collbench.plugins.training.records import ReplayedTrace
    from collbench.plugins.training.text import write_plan
    from collbench.report.screen import write_line

    planned, _ = planned_steps([training_of(recording, replay.paths)], (0,) * recording.ranks)
    write_plan(planned, arguments.format, sys.stdout)
    for sentence in () if arguments.quiet else trace_sentences(ReplayedTrace.of(recording)):
        write_line(sys.stderr, sentence)
    return 0


def planned_steps(trainings: Sequence[Training], hosts: tuple[int, ...]) -> tuple[list[PlannedStep], list[str]]:
    """Return the steps for these hosts, and the reasons for those without one. Raises UsageError for a training that is not optional."""
    from collbench.plugins.training.step_task import check_number
    from collbench.plugins.training.text import PlannedStep

    planned, left_out = [], []
    for training in trainings:
        try:
            shape = training.shape(hosts)
            step = training.regime.step(shape)
            check_number(step)
            planned.append(PlannedStep(training.regime, shape, step, training.model))
        except UsageError as error:
            if not training.optional:
                raise
            left_out.append(f"{training.regime.name} is skipped: {error}")
    return planned, left_out
