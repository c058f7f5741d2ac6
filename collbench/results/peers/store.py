"""Tables of other tools become run folders: different operations in one, cells that come again in the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from collbench import __version__
from collbench.errors import FINE, UsageError
from collbench.results.folder import RunFolder
from collbench.results.peers.peer import PeerRun
from collbench.results.record import SERIES, Row

_ELSEWHERE = ("environment", "devices")  # facts of a table that stand in run.json's own places
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
    """A table, and the file that it is from."""

    source: Source
    run: PeerRun


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
    def info(self) -> dict[str, Any]:
        """What run.json says: where the rows are from, what was missing, what is doubtful; hosts and ranks as far as they are told."""
        first = self.tables[0].run
        files = {table.source.sha256: vars(table.source) for table in self.tables}
        hosts = {"hosts": list(dict.fromkeys(first.hosts)), "rank_map": _rank_map(first)} if first.hosts else {}
        environment = {"environment": first.facts["environment"]} if first.facts.get("environment") else {}
        return {
            "backends": {backend: _versions(first) for backend in dict.fromkeys(row.backend for row in self.rows)},
            **hosts,
            **environment,
            "imported": {
                "files": list(files.values()),
                "tables": [_told(table) for table in self.tables],
                "missing": list(dict.fromkeys(phrase for table in self.tables for phrase in table.run.missing)),
                "doubts": [_named(table, doubt) for table in self.tables for doubt in table.run.doubts],
            },
        }

    def takes(self, run: PeerRun, series: set[tuple[Any, ...]]) -> bool:
        """Whether a table belongs to the same run: the same tool on the same hosts, and other series."""
        first = self.tables[0].run
        return self.series.isdisjoint(series) and _made_by(first) == _made_by(run)


def together(tables: Iterable[Table]) -> list[Together]:
    """The tables by the run that they become, in the order of their first ones."""
    found: list[Together] = []
    for table in tables:
        series = set(map(_SERIES_OF, table.run.rows))
        fitting = next((each for each in found if each.takes(table.run, series)), None)
        if fitting is None:
            fitting = Together()
            found.append(fitting)
        fitting.tables.append(table)
        fitting.series |= series
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
    for number, (path, run) in enumerate(zip(paths, runs, strict=True), 1):
        info = {"command": ["collbench", *command], "allocation_id": allocation, "launch_index": number, "launches": len(runs)}
        _write(path, run, {"collbench": __version__, **info, **run.info}, topology)
    return paths


def _write(path: Path, run: Together, info: Mapping[str, Any], topology: Mapping[str, Any] | None) -> None:
    rows = run.rows
    operations = {row.operation for row in rows}
    folder = RunFolder.create(path, operations.pop() if len(operations) == 1 else "import", info)
    if topology is not None:
        folder.write_topology(topology)
    folder.append_all(rows)
    folder.finish(exit_code=FINE)


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
    """As our own backends tell theirs: the library's version by its name, and the tool's."""
    library = run.facts.get("library")
    of_library = {"rccl" if run.tool == "rccl-tests" else "nccl": library} if isinstance(library, str) else {}
    return {**of_library, run.tool: run.version or "version not told"}


def _rank_map(run: PeerRun) -> list[dict[str, Any]]:
    devices = run.facts.get("devices")
    by_rank = {device["rank"]: device for device in devices} if isinstance(devices, list) else {}
    return [{"rank": rank, "host": host, **_device(by_rank.get(rank))} for rank, host in enumerate(run.hosts)]


def _device(device: Mapping[str, Any] | None) -> dict[str, Any]:
    return {"local_rank": device["device"], "gpu": device["gpu"], "gpu_name": device["name"]} if device else {}


def _made_by(run: PeerRun) -> tuple[Any, ...]:
    return run.tool, run.version, tuple(run.hosts)
