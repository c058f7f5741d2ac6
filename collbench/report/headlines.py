"""What a report begins with, in words: what was measured on what, and the best of each operation over each backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collbench.analysis.best import Peak, told_as_time
from collbench.analysis.launches import Launches, forced
from collbench.report.columns import NOTHING, ONE_RANK, doubtful, limited_by, not_available, of_ceiling, rate, same_for_all, times, value_of
from collbench.report.columns import wrong as wrong_elements
from collbench.report.flags import printable
from collbench.report.plan import plan_of
from collbench.results.reader import Run
from collbench.results.row import Row
from collbench.units import format_size

_MOST_NAMES, _LONGEST = 4, 300
_AT = ("dtype", "redop", "root", "in_place", "buffers", "window", "registration", "algorithm", "protocol", "traffic", "streams")
_BARE = ("root", "window", "streams")  # numbers, which say nothing without their name


def short(text: str, most: int = _LONGEST) -> str:
    """`text` from a file, made printable, and cut where it goes on and on."""
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def subject(table: Launches) -> dict[str, str]:
    """What was measured, how, on what, with what, when: from "measured": "allreduce over nccl, 8 B to 1 GiB (28 cells)" on."""
    run, plan = table.runs[0], plan_of(table.runs[0], table.rows, table.name)
    operations, backends = (_several(sorted({getattr(row, name) for row in table.rows})) for name in ("operation", "backend"))
    sizes = sorted(size for size in plan.sizes if size > 0)
    span = f", {_span(sizes)}" if sizes else ""
    what = f"{operations} over {backends}{span} ({_count(len(table.rows), 'cell')})" if table.rows else "no cells"
    return {"measured": short(what), "how": short(same_for_all(plan)), **circumstances(run), "launches": _launches(table)}


def circumstances(run: Run) -> dict[str, str]:
    """Where, with which software and when a run was made; "" where it does not say."""
    told = {
        "imported from": _imported(run),
        "on": _hosts(run),
        "of which the first": _machine(run),
        "with": _software(run.info),
        "when": _when(run.info),
    }
    return {name: short(text) for name, text in told.items()}


def figure(row: Row) -> str:
    """The figure of a peak: "42.0 of 50.0 GB/s (84 %) limited by NIC 4×100 Gb/s (ring)"; "? " before it where a flag casts doubt on it."""
    if not has_share(row):
        return speed(row)
    given = row.ceiling is not None and row.ceiling.kind == "given"  # a figure that somebody named limits nothing
    return f"{speed(row)}{', ' if given else ' limited by '}{limited_by(row)}"


def has_share(row: Row) -> bool:
    """Whether its figure is a part of what it could be: right data, a percentage that is honest, and no ping-pong."""
    return row.na is None and not row.wrong and of_ceiling(row) not in (NOTHING, ONE_RANK) and not told_as_time(row)


def speed(row: Row) -> str:
    """The same without what limits it: "42.0 of 50.0 GB/s (84 %)"."""
    if row.na is not None:
        return not_available(row)
    if row.wrong:
        return wrong_elements(row)
    return f"{'? ' if doubtful(row) else ''}{of_ceiling(row) if has_share(row) else _alone(row)}"


def _alone(row: Row) -> str:
    return times(row, " µs") if told_as_time(row) else f"{rate(row.busbw_bytes_per_s)} GB/s"


def where(row: Row, rows: Sequence[Row]) -> str:
    """At which size, and at which of what differs among those of `rows` that it competes with: "64 MiB, in place, tree"."""
    size = [format_size(row.size_bytes)] if row.size_bytes else []
    others = [each for each in rows if (each.operation, each.backend) == (row.operation, row.backend)]
    differing = [name for name in _AT if len({getattr(each, name) for each in others}) > 1 and getattr(row, name) is not None]
    words = [f"{name} {value_of(row, name)}" if name in _BARE else value_of(row, name) for name in differing]
    return short(", ".join([*size, *(word for word in words if word != NOTHING)]) or NOTHING)


def latency(peak: Peak) -> str:
    """The time of the smallest message: "2.345 µs at 8 B"."""
    row = peak.smallest
    if row is None:
        return NOTHING
    return (
        f"{'? ' if doubtful(row) else ''}{times(row, ' µs')} at {format_size(row.size_bytes)}{f' ({forced(row)})' if forced(row) else ''}"
    )


def _launches(table: Launches) -> str:
    """What the intervals rest on, as far as there are any."""
    if any(row.launches > 1 for row in table.rows):
        return f"{len(table.runs)} launches: intervals are over their medians"
    if len(table.runs) > 1:
        return f"{len(table.runs)} launches"
    bounded = any(row.time_s is not None and row.time_s.ci_low is not None for row in table.rows)
    return "1 launch: intervals are within it, another may differ by more" if bounded else "1 launch"


def _span(sizes: Sequence[int]) -> str:
    return format_size(sizes[0]) if len(sizes) == 1 else f"{format_size(sizes[0])} to {format_size(sizes[-1])}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _several(names: Sequence[str]) -> str:
    shown = [short(name, 40) for name in names[:12]]
    return ", ".join(shown) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _hosts(run: Run) -> str:
    """ "2 hosts: node1, node2"."""
    listed = run.info.get("hosts")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{_count(len(names), 'host')}: {', '.join(short(name, 60) for name in names[:_MOST_NAMES])}{more}" if names else ""


def _machine(run: Run) -> str:
    """ "AMD EPYC, 2 CPUs, Debian GNU/Linux 12 (bookworm), kernel 6.1": the host that wrote the run."""
    facts = run.info.get("host")
    patterns = {"cpu_model": "{}", "cpus_online": "{} CPUs", "system": "{}", "kernel": "kernel {}"}
    known = {name: facts.get(name) for name in patterns} if isinstance(facts, dict) else {}
    return ", ".join(patterns[name].format(value) for name, value in known.items() if isinstance(value, str | int) and value)


def _software(info: Mapping[str, Any]) -> str:
    """ "MPICH 5.0.2 (mpi)", of each backend what it says first of itself."""
    backends = info.get("backends")
    first = {
        name: next(iter(facts.items()))
        for name, facts in (backends.items() if isinstance(backends, dict) else ())
        if isinstance(facts, dict) and facts and "not measured" not in facts
    }
    return ", ".join(f"{name}: {key} {value}" if str(key) != name else f"{name}: {value}" for name, (key, value) in first.items())


def _imported(run: Run) -> str:
    """ "nccl-tests 2.17.6: allreduce.log, broadcast.log (a time is the mean over 20 iterations)", of each tool and statistic."""
    imported = run.info.get("imported")
    tables = imported.get("tables") if isinstance(imported, dict) else None
    known = [table for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
    files: dict[tuple[str, str], list[str]] = {}
    for table in known:
        file, tool, version, statistic = (_text(table, name) for name in ("file", "tool", "version", "statistic"))
        files.setdefault((f"{tool} {version}".strip(), statistic), []).append(file)
    return "; ".join(f"{tool}: {_several(list(dict.fromkeys(names)))} (a time is {what})" for (tool, what), names in files.items())


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    return short(value, 120) if isinstance(value, str) else ""


def _when(info: Mapping[str, Any]) -> str:
    """When it began, or was imported: when another tool measured is not known."""
    started, version = info.get("started_utc"), info.get("collbench")
    how = "imported " if "imported" in info else ""
    when = f"{how}{started[:10]} {started[11:16]} UTC" if isinstance(started, str) and len(started) >= 16 else ""
    by = f"collbench {version}" if isinstance(version, str) else ""
    return ", ".join(word for word in (when, by) if word)
