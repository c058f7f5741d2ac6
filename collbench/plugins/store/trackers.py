"""Rows for programs that track results over time: asv (`report --asv`) and TensorBoard (`report --tensorboard`).

Rows without a time, and rows with wrong data, are left out.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

import msgspec
from msgspec.structs import replace

from collbench.analysis.launches import Launches, grouped
from collbench.cli.parser import Parser
from collbench.errors import UsageError
from collbench.report.bencher import case_name, comparable_times, series_name
from collbench.report.frame import printable
from collbench.report.headlines import short
from collbench.report.screen import write_line
from collbench.report.writers import confirm_written, write_whole
from collbench.results.row import Row
from collbench.results.timeline import seconds_between
from collbench.units import plural
from collbench.untrusted import dict_of, list_of, parse_json, read_file

_EPOCH = "1970-01-01T00:00:00+00:00"


def add_options(parser: Parser) -> None:
    """Add the options to `report`."""
    parser.add_argument("--asv", metavar="DIR", type=Path, help="add the times to the results folder of asv (airspeed velocity)")
    parser.add_argument("--commit", metavar="REV", help="--asv: the commit that was measured (default: HEAD of the repository here)")
    parser.entry = replace(parser.entry, expert=f"{parser.entry.expert} commit")
    parser.add_argument("--tensorboard", metavar="DIR", type=Path, help="add the figures as scalars over runs (needs tensorboard)")


def report_writer(arguments: argparse.Namespace) -> Callable[[Sequence[Launches], TextIO], None]:
    """Return a function that writes tables as the options of `report` ask, and names on a stream what it wrote. Raises UsageError."""
    if arguments.commit is not None and arguments.asv is None:
        raise UsageError("--commit is for --asv: add it, or leave out --commit")

    def write(tables: Sequence[Launches], err: TextIO) -> None:
        if arguments.asv is not None:
            confirm_written(write_asv(tables, arguments.asv, find_commit(arguments.commit or "HEAD")), err)
        if arguments.tensorboard is not None:
            scalars = plural(write_tensorboard(tables, arguments.tensorboard), "scalar")
            write_line(err, printable(f"wrote {scalars} to {arguments.tensorboard}"))

    return write


# asv's results folder: a file for each machine and commit, and the list of benchmarks: https://asv.readthedocs.io/en/stable/dev.html

_API = {"machine.json": 1, "benchmarks.json": 2, "results": 2}
_ENVIRONMENT = "collbench"
_COLUMNS = ("result", "params", "version", "started_at")
_LARGEST_ASV = 64 << 20  # bytes of a file that is extended


class Commit(msgspec.Struct, frozen=True):
    """A commit of the repository that asv.conf.json names: its hash, and its date in seconds since 1970."""

    hash: str
    date_s: int


def find_commit(revision: str) -> Commit:
    """Return a commit of the git repository in the current folder. Raises UsageError with the remedy."""
    command = ["git", "log", "-1", "--format=%H %ct", "--end-of-options", revision, "--"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        line = re.fullmatch(r"([0-9a-f]{40,64}) (\d{1,12})", done.stdout.strip())
        reason = (done.stderr.strip().splitlines() or ["no such commit"])[-1]
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        line = None
        reason = str(error)
    if line is None:
        remedy = "run it in the repository that asv.conf.json names, and specify the measured commit with --commit REV"
        raise UsageError(f"--asv: git does not know the commit '{short(revision, 80)}' ({short(reason)}): {remedy}")
    return Commit(line[1], int(line[2]))


def write_asv(tables: Sequence[Launches], folder: Path, commit: Commit) -> list[Path]:
    """Write the runs into asv's results folder, and return the files.

    Benchmarks and results of earlier runs stay; those of the same series and commit are replaced. Raises UsageError for a file that asv
    did not write, or that cannot be written.
    """
    written: list[Path] = []
    benchmarks = _existing(folder / "benchmarks.json")
    for table in tables:
        facts = _machine(table)
        machine_folder = folder / facts["machine"]
        file = machine_folder / f"{commit.hash[:8]}-{_ENVIRONMENT}.json"
        content = _existing(file) or {
            "commit_hash": commit.hash, "env_name": _ENVIRONMENT, "date": 1000 * commit.date_s, "params": facts, "python": "",
            "requirements": {}, "env_vars": {}, "result_columns": list(_COLUMNS), "results": {}, "durations": {},
            "version": _API["results"],
        }  # fmt: skip
        if content.get("commit_hash") != commit.hash or not isinstance(content.get("results"), dict):
            raise UsageError(f"--asv: {file} is not a result of commit {commit.hash[:8]}: choose another folder")
        started_s = seconds_between(_EPOCH, table.runs[0].info.get("started_utc"))
        started_ms = None if started_s is None else round(1000 * started_s)
        series = grouped((row for row in table.rows if comparable_times(row)), series_name)
        for rows in series.values():
            parts = series_name(rows[0]).split("/", 2)  # asv shows operation and backend as a tree
            name = ".".join(re.sub(r"[^\w-]+", "_", part) for part in parts)
            sizes = [str(row.size_bytes) for row in rows]
            benchmarks[name] = _benchmark(name, rows[0], sizes, benchmarks.get(name))
            times = [row.time_s.p50 for row in rows if row.time_s]
            content["results"][name] = [times, [sizes], benchmarks[name]["version"], started_ms]
        _write_json(machine_folder / "machine.json", {**facts, "version": _API["machine.json"]})
        _write_json(file, content)
        written.append(file)
    _write_json(folder / "benchmarks.json", {**benchmarks, "version": _API["benchmarks.json"]})
    return written


def _benchmark(name: str, row: Row, sizes: Sequence[str], earlier: Any) -> dict[str, Any]:
    """Return the entry of benchmarks.json: the sizes are the parameter, with those of earlier runs."""
    earlier_params = list_of(dict_of(earlier).get("params"), list) or [[]]
    earlier_sizes = [size for size in earlier_params[0] if str(size).isdecimal()]
    all_sizes = sorted({*sizes, *earlier_sizes}, key=int)
    return {
        "name": name, "type": "time", "unit": "seconds", "param_names": ["bytes"], "params": [all_sizes], "code": series_name(row),
        "version": sha256(name.encode()).hexdigest(), "timeout": 60.0, "number": 0, "repeat": 0, "warmup_time": 0.0, "sample_time": 0.0,
        "rounds": 1, "min_run_count": 1,
    }  # fmt: skip


def _machine(table: Launches) -> dict[str, Any]:
    """Return what machine.json has: a name that is a file name, and what is known of the hosts."""
    info = table.runs[0].info
    hosts = list_of(info.get("hosts"), str) or ["unknown"]
    host_facts = dict_of(info.get("host"))
    name = hosts[0] if len(hosts) == 1 else f"{hosts[0]}-and-{len(hosts) - 1}-more"
    keys = {"arch": "machine", "cpu": "cpu_model", "os": "system", "num_cpu": "cpus_online", "ram": ""}
    texts = {key: short(str(host_facts.get(source, ""))) for key, source in keys.items()}
    return {"machine": re.sub(r"[^\w.-]+", "_", name)[:100].lstrip(".") or "unknown", **texts}


def _existing(file: Path) -> dict[str, Any]:
    """Return the content of a file of asv; {} if it is missing. Raises UsageError for another content."""
    try:
        content = parse_json(read_file(file, _LARGEST_ASV)) if file.exists() else {}
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "not JSON"
        raise UsageError(f"--asv: {file} cannot be read ({reason}): choose another folder") from error
    if not isinstance(content, dict):
        raise UsageError(f"--asv: {file} is not a file of asv: choose another folder")
    return content


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--asv {file.parent} cannot be written ({error.strerror or error}): choose another folder") from error
    write_whole(file, json.dumps(value, indent=1) + "\n", "--asv")


def write_tensorboard(tables: Sequence[Launches], folder: Path) -> int:
    """Add an event file to TensorBoard's folder, and return the number of scalars.

    The step is the time at which a run began, in seconds since 1970, so that each run is a point of the same series. Runs without that
    time are left out. Raises UsageError without the package tensorboard, and if the folder cannot be written.
    """
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise UsageError("--tensorboard needs tensorboard: pip install tensorboard") from error
    scalars = list(_scalars(tables))
    try:
        writer = Writer(str(folder))
        for name, value, at_s in scalars:
            writer.add_scalar(name, value, round(at_s), wall_time=at_s)
        writer.close()
    except OSError as error:
        raise UsageError(f"--tensorboard {folder} cannot be written ({error.strerror or error}): choose another folder") from error
    return len(scalars)


def _scalars(tables: Sequence[Launches]) -> Iterator[tuple[str, float, float]]:
    """Yield (name, value, seconds since 1970) of each figure."""
    for table in tables:
        at_s = seconds_between(_EPOCH, table.runs[0].info.get("started_utc"))
        if at_s is None:
            continue
        for row in table.rows:
            times = comparable_times(row)
            if times is None:
                continue
            figures = {
                "time in µs": 1e6 * times.p50,
                "busbw in GB/s": row.busbw_bytes_per_s / 1e9 if row.busbw_bytes_per_s and row.ranks > 1 else None,
                "percent of expected": row.comparison and row.comparison.percent,
            }
            yield from ((f"{case_name(row)}/{figure}", value, at_s) for figure, value in figures.items() if value is not None)
