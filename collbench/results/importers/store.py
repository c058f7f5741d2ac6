"""Tables of other tools become run folders: different operations in one, cells that come again in the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from collbench import __version__
from collbench.errors import UsageError
from collbench.results.importers.peer import Arrays, PeerRun, Skipped
from collbench.results.row import SERIES, Row
from collbench.results.whole import Whole, write_all

_ELSEWHERE = ("environment", "devices", "exit_code")  # facts of a table that stand in run.json's own places
_SERIES_OF = attrgetter(*SERIES)


@dataclass(frozen=True)
class Source:
    """The file that a table is from: its name without the folder, its size, SHA-256 and format."""

    name: str
    size_bytes: int
    sha256: str
    format: str


@dataclass(frozen=True)
class Table:
    """A table, and the file that it is from; `skipped` are tables of that file that were not read, on its first table alone."""

    source: Source
    run: PeerRun
    skipped: tuple[Skipped, ...] = ()


@dataclass
class Together:
    """The tables that become one run folder."""

    tables: list[Table] = field(default_factory=list)
    series: set[tuple[Any, ...]] = field(default_factory=set)

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of the tables."""
        return [row for table in self.tables for row in table.run.rows]

    @property
    def _unused_options(self) -> list[dict[str, Any]]:
        pairs = ((table, each) for table in self.tables for each in table.run.contradicted)
        return [{"file": table.source.name, "program": table.run.program, **vars(each)} for table, each in pairs]

    @property
    def arrays(self) -> dict[int, Arrays]:
        """The arrays of the rows, by index."""
        found: dict[int, Arrays] = {}
        before = 0
        for table in self.tables:
            found |= {before + index: arrays for index, arrays in table.run.arrays.items()}
            before += len(table.run.rows)
        return found

    @property
    def operation(self) -> str:
        """The one that all rows are of, else "import"."""
        operations = {series[0] for series in self.series}
        return str(operations.pop()) if len(operations) == 1 else "import"

    @property
    def info(self) -> dict[str, Any]:
        """What run.json says: where the rows are from, what was missing, what is doubtful; hosts and ranks as far as they are told."""
        first = self.tables[0].run
        files = {table.source.sha256: vars(table.source) for table in self.tables}
        hosts = {"hosts": list(dict.fromkeys(first.hosts)), "rank_map": _rank_map(first)} if first.hosts else {}
        environment = {"environment": first.facts["environment"]} if first.facts.get("environment") else {}
        codes = [code for table in self.tables if isinstance(code := table.run.facts.get("exit_code"), int)]
        return {
            **({"exit_code": max(codes)} if codes else {}),
            "backends": dict.fromkeys((row.backend for row in self.rows), _versions(first)),
            **hosts,
            **environment,
            "imported": {
                "files": list(files.values()),
                "tables": [_told(table) for table in self.tables],
                "missing": list(dict.fromkeys(phrase for table in self.tables for phrase in table.run.missing)),
                "doubts": [_named(table, doubt) for table in self.tables for doubt in table.run.doubts],
                **_listed("unused_options", self._unused_options),
                **_listed("skipped", [{"file": table.source.name, **vars(each)} for table in self.tables for each in table.skipped]),
            },
        }


def _listed(name: str, values: list[dict[str, Any]]) -> dict[str, Any]:
    """The key with its list, nothing for an empty one."""
    return {name: values} if values else {}


def together(tables: Iterable[Table]) -> list[Together]:
    """The tables by the run that they become: the first of the same tool, library, settings and hosts that lacks their series."""
    found: list[Together] = []
    by_maker: dict[tuple[Any, ...], list[Together]] = {}
    free: dict[tuple[Any, ...], int] = {}  # by maker and series: the first run that lacks it; all before have it
    for table in tables:
        maker, series = _made_by(table.run), set(map(_SERIES_OF, table.run.rows))
        runs = by_maker.setdefault(maker, [])
        at = max((free.get((maker, each), 0) for each in series), default=0)
        while at < len(runs) and not runs[at].series.isdisjoint(series):
            at += 1
        if at == len(runs):
            runs.append(Together())
            found.append(runs[at])
        runs[at].tables.append(table)
        runs[at].series |= series
        free |= {(maker, each): at + 1 for each in series if free.get((maker, each), 0) == at}
    return found


def store(
    runs: Sequence[Together], out: Path, command: Sequence[str], allocation: str | None, topology: Mapping[str, Any] | None
) -> list[Path]:
    """Writes the runs: one as `out` itself, several as out/launch-1, launch-2, … Returns the folders.

    Several with an `allocation` are read as launches of it; without, each stands alone. Raises UsageError where a run is there already.
    """
    if any(out.glob("launch-*")):
        raise UsageError(f"--out {out} already holds launches: choose a new folder, so that nothing is lost")
    paths = [out] if len(runs) == 1 else [out / f"launch-{number}" for number in range(1, len(runs) + 1)]
    same = {"collbench": __version__, "command": ["collbench", *command], "allocation_id": allocation, "launches": len(runs)}
    write_all(
        Whole(path, run.operation, {**same, "launch_index": number, **run.info}, run.rows, topology, run.arrays)
        for number, (path, run) in enumerate(zip(paths, runs, strict=True), 1)
    )
    return paths


def _told(table: Table) -> dict[str, Any]:
    run = table.run
    about = {name: getattr(run, name) for name in ("tool", "version", "program", "statistic")}
    return {
        "file": table.source.name,
        **about,
        "rows": len(run.rows),
        "facts": {name: value for name, value in run.facts.items() if name not in _ELSEWHERE},
    }


def _named(table: Table, doubt: str) -> str:
    return f"{table.source.name}, {table.run.program}: {doubt}"


def _versions(run: PeerRun) -> dict[str, str]:
    """As for collbench's own backends: the library's version by its name, and the tool's."""
    library = run.facts.get("library")
    name = "rccl" if any(row.backend == "rccl" for row in run.rows[:1]) else "nccl"
    of_library = {name: library} if isinstance(library, str) else {}
    return {**of_library, run.tool: run.version or "version unknown"}


def _rank_map(run: PeerRun) -> list[dict[str, Any]]:
    devices = run.facts.get("devices")
    by_rank = {device["rank"]: device for device in devices} if isinstance(devices, list) else {}
    return [{"rank": rank, "host": host, **_device(by_rank.get(rank))} for rank, host in enumerate(run.hosts)]


def _device(device: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"local_rank": device["device"], "gpu": device["gpu"], "gpu_name": device["name"]} if device else {}


def _made_by(run: PeerRun) -> tuple[Any, ...]:
    environment = run.facts.get("environment")
    settings = tuple(sorted(environment.items())) if isinstance(environment, dict) else ()
    return run.tool, run.version, run.facts.get("library"), settings, tuple(run.hosts)
