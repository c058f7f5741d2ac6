"""Reads what nccl-tests writes with -J FILE: JSON, version 3 (src/util.cu), with the ranks' devices, arguments and environment.

With -I 1 it holds the time of each iteration, the slowest process's and each process's: these become samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from collbench.errors import UsageError
from collbench.results.environment import recorded_environment
from collbench.results.importers.nccl_lines import Body, Device, Head, Line, dotted
from collbench.results.importers.nccl_table import Block, runs_of
from collbench.results.importers.peer import Given, Reader, Reading, read_tables
from collbench.results.importers.rows import is_time
from collbench.results.importers.samples import Samples
from collbench.results.jsonl import parse_object

_NEWEST = 3
_AVERAGES = {"0": "of rank 0", "1": "averaged over the ranks", "2": "the least of the ranks", "3": "the most of the ranks"}
_NUMBERS = {
    "warmup": "warmup_iters", "iterations": "iterations", "calls": "aggregated_iterations", "validation": "validation", "graph": "graph",
    "threads": "nthreads", "gpus": "ngpus",
}  # fmt: skip
_PLACES = ("out_of_place", "in_place")
_PER_ITERATION = ("min_us", "max_us", "p99_us", "cv_pct", "p95_us")
_MOST_NUMBER = 2**62


def knows(lines: Sequence[str]) -> bool:
    """Whether it is an object with keys that only nccl-tests writes."""
    first = next((line for line in lines if line.strip()), "").lstrip()
    return first.startswith("{") and any('"nccl_version"' in line or '"alg_bw"' in line for line in lines)


def read(lines: Sequence[str], given: Given) -> Reading:
    """The one table. Raises UsageError for text that is not such an object, and for one that was cut off."""
    try:
        document = parse_object("\n".join(lines).encode())
    except ValueError as error:
        raise UsageError(
            f"it is {error}: the program was stopped before it had written all, its text output has what was finished"
        ) from error
    version = document.get("version")
    if not isinstance(version, int) or not 0 < version <= _NEWEST:
        raise UsageError(f"its version is {str(version)[:20]}, and this collbench knows nccl-tests' JSON up to version {_NEWEST}: update")
    head = _head(document)
    table, samples = list[Line](), dict[tuple[int, bool], Samples]()
    for number, each in enumerate(_objects(document.get("results")), 1):
        if line := _line(number, each):
            table.append(line)
            samples.update(_samples(number, each, head))
    block = Block(head, table, samples=samples)
    reading = read_tables([block], lambda one: runs_of(one, given), lambda one: 0)
    if not reading.runs:
        raise UsageError("its results hold no size with a time: the program was stopped before its first line")
    return reading


def _samples(number: int, each: Mapping[str, Any], head: Head) -> Iterator[tuple[tuple[int, bool], Samples]]:
    """The times per call of the iterations that count, by (line, in place)."""
    calls = max(1, head.numbers.get("calls", 1))
    for in_place, place in enumerate(_PLACES):
        told = _object(each.get(f"{place}_per_iter"))
        skipped = _whole(told.get("skipped_iterations")) or 0
        slowest = _times(told.get("times_us"), skipped, calls)
        iterations = _whole(each.get("actual_iterations")) or head.numbers.get("iterations", 0)
        if len(slowest) < 2 or len(slowest) != iterations - skipped:
            continue  # without them the printed summary is still right
        processes = [_times(one, skipped, calls) for one in _list(told.get("per_process_max_times_us"))]
        # A process's time is that of its slowest GPU: with several GPUs per process, ranks have no times of their own.
        of_ranks = len(processes) == len(head.devices) and all(len(one) == len(slowest) for one in processes)
        per_rank = np.array(processes) if of_ranks and processes else None
        several = f" of {calls} calls" if calls > 1 else ""
        statistic = f"the median over {len(slowest)} iterations{several} of the slowest rank"
        yield (number, bool(in_place)), Samples(np.array(slowest), statistic, per_rank)


def _times(value: Any, skipped: int, calls: int) -> list[float]:
    """Seconds per call; nothing where one of them is not a time."""
    times = [one / 1e6 / calls if isinstance(one, int | float) and not isinstance(one, bool) else -1.0 for one in _list(value)[skipped:]]
    return times if all(is_time(time) for time in times) else []


def _head(document: Mapping[str, Any]) -> Head:
    config = _object(document.get("config"))
    arguments = [word for word in _list(document.get("args")) if isinstance(word, str)]
    head = Head(program=arguments[0] if arguments else None, starts=1, old=False)
    head.numbers = {name: value for name, key in _NUMBERS.items() if (value := _whole(config.get(key))) is not None}
    head.cpu_time = any("cpu_time" in _object(each.get(place)) for each in _objects(document.get("results")) for place in _PLACES)
    head.blocking = _blocking(arguments) if config.get("blocking_collectives") == "true" else 0
    head.averaged = _AVERAGES.get(_option(arguments, "-a", "--average") or "1", _AVERAGES["1"])
    head.devices = [device for each in _objects(config.get("devices")) if (device := _device(each))]
    head.bad = _whole(_object(document.get("out_of_bounds")).get("count"))
    code = _whole(document.get("nccl_version"))
    head.library = dotted(code) if code else None
    head.environment = recorded_environment(_variables(document.get("env")))
    return head


def _line(number: int, each: Mapping[str, Any]) -> Line | None:
    size, count, dtype = _whole(each.get("size")), _whole(each.get("count")), each.get("type")
    if size is None or count is None or not isinstance(dtype, str):
        return None
    redop, root = each.get("redop"), str(each.get("root")).strip()
    named = redop if isinstance(redop, str) and redop not in ("", "none") else None
    placed = [_body(_object(each.get(place)), _object(each.get(f"{place}_per_iter"))) for place in _PLACES]
    return Line(number, size, count, dtype, named, int(root) if root.isdecimal() and len(root) < 9 else None, (placed[0], placed[1]))


def _body(figures: Mapping[str, Any], per_iteration: Mapping[str, Any]) -> Body | None:
    """As the text prints them, with the six digits that JSON has."""
    if not figures:
        return None
    told = [_figure(figures.get(name)) for name in ("time", "alg_bw", "bus_bw", "nwrong")]
    each = tuple(_figure(per_iteration.get(name)) for name in _PER_ITERATION) if per_iteration else ()
    return Body(told[0], told[1], told[2], told[3], each)


def _figure(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, int | float) and not isinstance(value, bool) else "N/A"


def _device(each: Mapping[str, Any]) -> Device | None:
    numbers = [_whole(each.get(name)) for name in ("rank", "group", "device")]
    host, address, name = (str(each.get(key, "")) for key in ("hostname", "device_hex", "device_info"))
    if numbers[0] is None or not host:
        return None
    return Device(numbers[0], numbers[1] or 0, host, numbers[2] or 0, address, name.strip())


def _blocking(arguments: Sequence[str]) -> int:
    """-z; JSON itself says only that there is one."""
    value = _option(arguments, "-z", "--blocking")
    return int(value) if value in ("1", "2", "3") else 1


def _option(arguments: Sequence[str], short: str, long: str) -> str | None:
    """The last value given, as "-z 1", "-z1", "--blocking 1" or "--blocking=1"."""
    found = None
    for word, after in zip(arguments, [*arguments[1:], ""], strict=False):
        if word in (short, long):
            found = after
        elif word.startswith(f"{long}="):
            found = word.partition("=")[2]
        elif word.startswith(short) and word[len(short) :].isdecimal():
            found = word[len(short) :]
    return found


def _variables(value: Any) -> dict[str, str]:
    pairs = (word.partition("=") for word in _list(value) if isinstance(word, str))
    return {name: text for name, _, text in pairs if name}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_NUMBER else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    return (each for each in _list(value) if isinstance(each, dict))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


NCCL_TESTS_JSON = Reader("nccl-tests-json", "nccl-tests and rccl-tests, JSON (-J), with single times (-I 1)", knows, read)
