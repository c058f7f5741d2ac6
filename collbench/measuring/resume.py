"""Resume an interrupted run of any kind in its folder: stored records stay, and only what is missing is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from collbench.control.world import World
from collbench.errors import UsageError
from collbench.measuring.open_backends import PlannedCase
from collbench.measuring.prepared_case import placed
from collbench.measuring.request import Request
from collbench.measuring.row import row_without
from collbench.operations.registry import operations
from collbench.plugin import record_files
from collbench.results.environment import steering
from collbench.results.folder import RUN, TOPOLOGY, RunFolder, quoted
from collbench.results.reader import Run, read_run
from collbench.results.row import CaseKey, Row
from collbench.results.store import parse_object, read_object, to_line
from collbench.units import plural
from collbench.untrusted import dict_of, list_of

if TYPE_CHECKING:
    from collbench.machine.model import Machine


# Whether a resumed run is the same: the request, the software and the hosts.

_IDENTITY = CaseKey._fields
_HOST_FACTS = ("system", "kernel", "machine", "libc", "cpu_model", "python")
_SHOWN = 80  # characters of a text
_BEFORE = 20  # of them before the first difference
_MOST_NAMED = 4
_ARRANGED = "how the cases are arranged (SHA-256)"
# Options that do not change what is measured.
_NOT_MEASURED = frozenset(
    {
        "--out", "--resume", "--resume-if-exists", "--dry-run", "--format", "--color", "--quiet", "--columns", "--verbose", "-v", "--html",
        "--trace", "--nvtx", "--timeout", "--launches", "--allocation", "--oversubscribe", "--no-config",
    }
)  # fmt: skip


def planned(work: Sequence[PlannedCase], world: World) -> list[tuple[Row, Row]]:
    """Return for each case how its row will name it: (as it is measured, as it was requested, where that is not possible)."""
    rows = []
    for operation, case, opened in work:
        size = (opened.ranks(world), len(world.hosts))
        placed_case = placed(case, operation, opened.backend) if opened.backend else case
        rows.append((row_without(operation, placed_case, "", size, ""), row_without(operation, case, "", size, "")))
    return rows


def key_of(row: Row) -> CaseKey:
    """Return the values that distinguish the row's case from all others of a run. A point-to-point case's pairs follow from the ranks."""
    operation = operations().get(row.operation)
    if operation and operation.pair and not operation.aggregate:
        row = replace(row, group="all")
    return CaseKey._make(getattr(row, name) for name in _IDENTITY)


def requested_of(request: Request, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the planned cases for run.json: their number, the values of each option, a digest, and the options that all of them share."""
    keys = [key_of(row) for row in rows]
    values = {name: list(dict.fromkeys(column)) for name, column in zip(_IDENTITY, zip(*keys, strict=True), strict=True)}
    text = "\n".join(sorted(repr(key.stored()) for key in keys))
    requested = {
        "cells": len(keys), "values": {name: different for name, different in values.items() if different != [None]},
        "digest": hashlib.sha256(text.encode()).hexdigest(), "options": options_of(request),
    }  # fmt: skip
    span = request.sweep.each[0].span
    return {**requested, "span": list(span)} if span else requested


def options_of(request: Request) -> dict[str, Any]:
    """Return the options that all kinds of runs share, for run.json: a run is resumed only with the same ones."""
    budget = request.budget
    options: dict[str, Any] = {
        "--iterations": budget.iterations, "--warmup": budget.warmup,
        "--precision": budget.precision and 100 * budget.precision, "--max-time": budget.max_time_s,
        "--check": request.check, "--ceiling": request.ceiling, "--oversubscription": request.oversubscription, "--seed": request.seed,
        "--evidence": request.evidence, "--telemetry": request.telemetry_hz, "--gpus-per-process": request.gpus_per_process,
    }  # fmt: skip
    if budget.total_s is not None:
        options["--total-time"] = budget.total_s
    if request.slowed:
        options["--slowed"] = "; ".join(request.slowed.texts)
    return options


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what differs between two contents of run.json, as clauses: first the options, then the machine; None without a difference.

    Example: "--max-time was 3 and is 5, the host's kernel was 6.1 and is 6.2". Values that change with every start (process numbers,
    times, folders) are ignored.
    """
    requested = _changes(_request_facts(then), _request_facts(now))
    if requested and then.get("operation") == now.get("operation"):  # as the user typed it, if that differs
        requested = _changes(_typed(then), _typed(now)) or requested
    if len(requested) > 1:  # the digest says nothing that the others do not
        requested = [clause for clause in requested if not clause.startswith(_ARRANGED)]
    changes = [*requested, *_changes(_machine_facts(then), _machine_facts(now))]
    if not changes:
        return None
    more = f" and {plural(len(changes) - _MOST_NAMED, 'other difference')}" if len(changes) > _MOST_NAMED else ""
    return ", ".join(changes[:_MOST_NAMED]) + more


def _changes(then: Iterable[tuple[str, str]], now: Iterable[tuple[str, str]]) -> list[str]:
    before = dict(then)
    after = dict(now)
    changes = []
    for name in dict.fromkeys([*after, *before]):
        if before.get(name) != after.get(name):
            texts = before.get(name, "not set"), after.get(name, "not set")
            # long texts are cut to start shortly before the first difference
            equal = next((index for index, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
            start = max(0, equal - _BEFORE) if max(map(len, texts)) > _SHOWN else 0
            end = start + _SHOWN
            was, is_now = (f"{'…' * (start > 0)}{text[start:end]}{'…' * (len(text) > end)}" for text in texts)
            changes.append(f"{name} was {was} and is {is_now}")
    return changes


def _typed(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) of the command line, without the options that do not change what is measured."""
    option = "the argument"
    values: list[str] = []
    for word in [*list_of(info.get("command"), str)[2:], "--"]:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word[1:2].isdigit():
            values.append(word)
            continue
        if option not in _NOT_MEASURED and (values or option.startswith("-")):
            yield option, " ".join(values) or "set"
        option = name
        values = [value] if equals else []


def request_difference(then: Mapping[str, Any], request: Request, more: Mapping[str, Any] | None = None) -> str | None:
    """Return as `difference`, for values known before the ranks have joined: collbench, the command, the suite and the options.

    more: the options of a kind of run other than cases.
    """
    from collbench import __version__

    now = {
        "collbench": __version__,
        "operation": request.command,
        "suite": request.suite,
        "asked": {"options": {**options_of(request), **(more or {})}},
        "command": ["collbench", *request.argv],
    }
    options = dict_of(then.get("asked")).get("options")
    before = {name: then.get(name) for name in now} | {"asked": {"options": options} if options else None}
    return difference(before, parse_object(to_line(now).encode()))


def same_command(then: Mapping[str, Any], request: Request) -> bool:
    """Return whether a run.json is of the same command line and settings, apart from options that do not change what is measured."""
    if dict(_typed(then)) != dict(_typed({"command": ["collbench", *request.argv]})):
        return False
    if dict_of(dict_of(then.get("configuration")).get("values")) != dict((request.configuration or {}).get("values", {})):
        return False
    return bool(dict_of(then.get("suite")).get("digest") == (request.suite or {}).get("digest"))


def _request_facts(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of what was requested, the most important first."""
    yield "the command", str(info.get("operation"))
    suite = dict_of(info.get("suite"))
    if suite:
        yield "the suite", str(suite.get("name"))
        yield "the suite's text (SHA-256)", str(suite.get("digest"))
    requested = dict_of(info.get("asked"))
    yield "what was requested", "recorded" if requested else "not recorded"
    yield from _texts("", requested.get("options"))
    yield from _texts("the cases' ", requested.get("values"))
    yield "the number of cases", str(requested.get("cells"))
    yield _ARRANGED, str(requested.get("digest"))


def _machine_facts(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the software, the hosts and the ranks, the most important first."""
    yield "collbench", str(info.get("collbench"))
    yield "the list of hosts", _text(info.get("hosts"))
    yield from _ranks(info.get("rank_map"))
    for name, versions in dict_of(info.get("backends")).items():
        if "not measured" in dict_of(versions):
            yield f"backend {name}", "not available"
        else:
            yield f"backend {name}", "available"
            yield from _texts(f"{name}'s ", versions)
    yield from _texts("the host's ", {name: dict_of(info.get("host")).get(name) for name in _HOST_FACTS})
    yield from _texts("", steering(dict_of(info.get("environment"))))


def _ranks(rank_map: Any) -> Iterator[tuple[str, str]]:
    """Yield where each rank is: its host, its GPU, and how many CPUs it may use."""
    ranks = list_of(rank_map, dict)
    yield "the number of ranks", str(len(ranks))
    for rank in ranks:
        name = f"rank {rank.get('rank')}"
        yield f"the host of {name}", str(rank.get("host"))
        if "gpu" in rank:
            yield f"the GPU of {name}", str(rank["gpu"])
        cpus = rank.get("cpus")
        yield f"the number of CPUs of {name}", str(len(cpus) if isinstance(cpus, list) else None)


def _texts(prefix: str, values: Any) -> Iterator[tuple[str, str]]:
    for name, value in dict_of(values).items():
        yield f"{prefix}{name}", _text(value)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not set" if value is None else str(value)


def topology_difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a difference between two contents of topology.json that changes the limits, as a clause; None without a known one."""
    old_interfaces = map(dict_of, list_of(then.get("interfaces"), object))
    new_interfaces = map(dict_of, list_of(now.get("interfaces"), object))
    for old, new in zip(old_interfaces, new_interfaces, strict=False):
        changed = next((name for name in new if old.get(name) != new.get(name)), None)
        if changed:
            return f"the network interface's {changed} was {_text(old.get(changed))} and is {_text(new.get(changed))}"
    from collbench.machine.cluster import differences

    before = _machines(then, "then")
    for host, machine in _machines(now, "now").items():
        changes = differences([before[host], machine]) if host in before else ()
        if changes:
            return f"{host} is another machine: {changes[0]}"
    return None


def _machines(document: Mapping[str, Any], name: str) -> dict[str, Machine]:
    """Return the machines by host name, with another name; empty if the document cannot be read.

    They have no virtual NICs, which containers add and remove. A NIC that carries the job is among `interfaces`.
    """
    from collbench.machine.readers.text import Unreadable
    from collbench.machine.snapshot import machines_of

    try:
        machines = machines_of(dict(document), "topology.json")
    except Unreadable:
        return {}
    by_host = {}
    for machine in machines:
        nics = tuple(nic for nic in machine.nics if nic.virtual is None)
        by_host[machine.hostname or ""] = replace(machine, hostname=name, nics=nics)
    return by_host


def resumed_note(path: str, stored: int, cases: int | None, noun: str = "case", complete: bool = False) -> str:
    """Return the sentence that the run continues in the folder of an earlier, incomplete one, and how much is left.

    stored  the number of records in the folder, which are not measured again
    cases   how many there are in all; None: not known
    noun    what is counted: case, round or row
    """
    has = f"{path} has {plural(stored, noun)}" if cases is None else f"{path} has {stored} of {plural(cases, noun)}"
    if complete or stored == cases:
        return f"{has}: nothing is left to measure"
    if cases is None:
        return f"{has}: the others are measured now"
    missing = cases - stored
    return f"{has}: {missing} {'is' if missing == 1 else 'are'} measured now"


class Stored(msgspec.Struct):
    """The stored part of a run, empty unless the run is resumed. Only `done`, `complete` and `resumed` are known at ranks other than 0.

    info     the part of run.json about this launch
    records  by the place of their case, training or round in the plan; done: these places
    complete whether nothing is left to measure
    cut      by file, the bytes of lines that were incomplete after a kill
    """

    folder: RunFolder | None = None
    info: dict[str, Any] = msgspec.field(default_factory=dict)
    records: dict[int, Any] = msgspec.field(default_factory=dict)
    cut: dict[str, int] = msgspec.field(default_factory=dict)
    done: frozenset[int] = frozenset()
    complete: bool = False
    resumed: bool = False

    def notes(self, total: int | None, noun: str) -> list[str]:
        """Return the sentences that the user should know of a resumed run. total: how many of these it has in all, None: not known."""
        if not (self.resumed and self.folder):
            return []
        path = str(self.folder.path)
        notes = [resumed_note(path, len(self.records), total, noun, self.complete)]
        if self.folder.taken_over:
            notes.append(f"{path} was locked by {self.folder.taken_over}, which has ended: the lock is replaced")
        unfinished = self.folder.unfinished_cases
        if unfinished:
            are = "is" if unfinished == 1 else "are"
            notes.append(f"{plural(unfinished, 'case')} of a row that was not finished {are} removed, and measured again")
        for name, count in self.cut.items():
            notes.append(f"{name} ended with an incomplete line: {plural(count, 'byte')} removed")
        return notes

    def go_on(self, topology: dict[str, Any]) -> None:
        """Store the topology, and note that a resumed run continues. Raises UsageError if its machines were others."""
        assert self.folder is not None
        if not self.resumed:
            self.folder.write_topology(topology)
            return
        path = self.folder.path / TOPOLOGY
        if not path.is_file():  # the run ended before it was written
            self._change(self.folder)
            self.folder.write_topology(topology)
            return
        try:
            then = read_object(path)
        except (OSError, ValueError) as error:
            raise UsageError(refusal(self.folder.path, f"its {TOPOLOGY} cannot be read ({error})")) from error
        change = topology_difference(then, parse_object(to_line(topology).encode()))
        if change:
            raise UsageError(refusal(self.folder.path, change))
        self._change(self.folder)

    def completed(self, code: int) -> RunFolder | None:
        """Return the folder of a run that gets no more records, if it does not yet record an end with this code; else None."""
        if self.folder is None:
            return None
        if "finished_utc" in self.folder.run and self.folder.run.get("exit_code") == code:
            self.folder.give_up()
            return None
        self._change(self.folder)
        return self.folder

    def _change(self, folder: RunFolder) -> None:
        """Make the first change to a resumed folder. Until here it is unchanged."""
        self.cut = folder.go_on()
        launch = {name: self.info.get(name) for name in ("command", "order_seed", "launcher", "launcher_facts", "allocation_id")}
        launch |= {"cut_bytes": self.cut, "taken_over_from": folder.taken_over}
        if folder.unfinished_cases:
            launch["removed_cases"] = folder.unfinished_cases
        folder.resumed(**launch)


def stored_order_seed(path: Path) -> int | None:
    """Return the seed of the order of a run to resume; None if it cannot be read: then the run is refused later."""
    with suppress(OSError, ValueError):
        seed = read_object(path / RUN).get("order_seed")
        return seed if isinstance(seed, int) else None
    return None


def open_folder(request: Request, info: dict[str, Any], take_up: Callable[[Run], tuple[dict[int, Any], bool]]) -> Stored:
    """Return a new folder, or the folder of the run to resume, locked for this process; at rank 0.

    info: the part of run.json about this launch. take_up: see `Task.take_up`. Raises UsageError for another run, and for one that
    cannot be continued.
    """
    earlier = request.earlier
    if earlier is None:
        return Stored(RunFolder.create(request.out, request.command, info), info)
    folder = RunFolder.reopen(earlier)
    try:
        changes = difference(folder.run, parse_object(to_line({"operation": request.command, **info}).encode()))
        if changes:
            raise UsageError(refusal(folder.path, changes))
        run = read_run(earlier)
        for row in run.rows:  # samples appended later would be taken for those that a row has lost
            for name in row.samples:
                run.array(row, name)
        records, complete = take_up(run)
    except BaseException:
        folder.give_up()
        raise
    folder.rows = len(records) if str(folder.run.get("operation")) in record_files() else len(run.rows)
    return Stored(folder, info, records, complete=complete, resumed=True)


def refusal(path: Path, why: str) -> str:
    """Return the error for a run of other options or on another machine."""
    return f"{path} cannot be resumed: {why}; use `collbench --resume {quoted(path)}` for the options of the run, or start a new run"


def rows_by_place(rows: Sequence[Row], planned: Sequence[tuple[Row, Row]]) -> dict[int, Row]:
    """Return the rows by the place of their case, each taken once."""
    stored: dict[CaseKey, list[Row]] = {}
    for row in rows:
        stored.setdefault(key_of(row), []).append(row)
    by_place: dict[int, Row] = {}
    for place, names in enumerate(planned):
        for key in map(key_of, names):
            if stored.get(key):
                by_place[place] = stored[key].pop(0)
                break
    return by_place
