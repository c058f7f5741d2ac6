"""Run folders from the tables of other tools: different operations share a folder, and repeated cases are in the next one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from collbench import __version__
from collbench.errors import UsageError
from collbench.plugins.importers.all_reduce_bench import ALL_REDUCE_BENCH
from collbench.plugins.importers.deepep import DEEPEP
from collbench.plugins.importers.fi_pingpong import FI_PINGPONG
from collbench.plugins.importers.gloo import GLOO
from collbench.plugins.importers.gpcnet import GPCNET
from collbench.plugins.importers.imb import IMB
from collbench.plugins.importers.importer import (
    Arrays,
    ImportedTable,
    Importer,
    Reading,
    Skipped,
    UnsupportedTool,
    UserInput,
    split_prefix,
    without_prefixes,
)
from collbench.plugins.importers.mpigraph import MPIGRAPH
from collbench.plugins.importers.nccl_inspector import NCCL_INSPECTOR
from collbench.plugins.importers.nccl_tests import NCCL_TESTS, NCCL_TESTS_JSON
from collbench.plugins.importers.nvbandwidth import NVBANDWIDTH, NVBANDWIDTH_JSON
from collbench.plugins.importers.osu import OSU
from collbench.plugins.importers.param import PARAM
from collbench.plugins.importers.perftest import PERFTEST
from collbench.plugins.importers.pod_log import POD_LOG
from collbench.plugins.importers.rccl_tests_file import RCCL_TESTS_FILE
from collbench.plugins.importers.ucx_perftest import UCX_PERFTEST
from collbench.reason import as_json
from collbench.results.folder import FinishedRun, write_all
from collbench.results.row import SERIES, Row

# Tools with output that is recognized but cannot be imported: (name, words of which a line has one, form of the line).
_UNSUPPORTED = (
    ("p2pBandwidthLatencyTest (CUDA samples)", ("GPU Bandwidth Latency Test", "Bidirectional P2P="),
     r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test|Bidirectional P2P=\w+ Bandwidth"),
    ("bandwidthTest (CUDA samples)", ("[CUDA Bandwidth Test]",), r"\[CUDA Bandwidth Test\] - Starting"),
    ("SuperBench", ("nccl-bw", "rccl-bw", "ib-validation", "gpu-copy-bw", "superbench"),
     r'"(?:nccl-bw|rccl-bw|ib-validation|gpu-copy-bw)[\w:-]{0,40}/|superbench'),
    ("iperf3", ("[ ID]", "Connecting to host "), r"\[ ID\] Interval\s+Transfer\s+(?:Bitrate|Bandwidth)|Connecting to host \S+, port \d+"),
    ("qperf", ("_bw:", "_lat:"), r"^(?:tcp|ud|rc|uc|rds|sctp|udp)_(?:bw|lat|bi_bw):\s*$"),
    ("netperf", ("MIGRATED ", "TCP STREAM TEST"), r"MIGRATED (?:TCP|UDP)_\w+ (?:TEST|REQUEST)|TCP STREAM TEST"),
    ("sockperf", ("sockperf: ",), r"sockperf: "),
    ("TransferBench", ("TransferBench ",), r"TransferBench v?\d"),
    ("rocm_bandwidth_test", ("RocmBandwidthTest", "Inter-Device ", "Unidirectional copy"),
     r"RocmBandwidthTest Version|Inter-Device (?:Access|Numa Distance)|Unidirectional copy peak bandwidth"),
    ("nccom-test (AWS Neuron)", ("nccom-test", "size(B)"), r"nccom-test|size\(B\)\s+count\(elems\)\s+type\s+time"),
    ("hccl_test (Ascend)", ("data_size(Bytes)", "the minbytes is "),
     r"data_size\(Bytes\)\s*:?\s*\|?\s*aveg_time|the minbytes is \d+, maxbytes is \d+"),
    ("UCC's ucc_perftest", ("Collective:", "Time, us"), r"Collective:\s+\w+|Count\s+Size\s+Time, us"),
    ("NVSHMEM's perftest", ("nvshmem", "#put_", "#get_", "#shmem_", "size(B)"),
     r"nvshmem.{0,40}perftest|#(?:put|get|shmem)_(?:bw|latency|p_\w+)|\|\s*size\(B\)\s*\|.{0,40}latency\(us\)"),
    ("oneCCL's benchmark", ("oneCCL benchmark", "stddev[%]"),
     r"oneCCL benchmark|#bytes\s+#repetitions\s+t_min\[usec\]\s+t_max\[usec\]\s+t_avg\[usec\]\s+stddev\[%\]"),
    ("NCCL's Inspector for Prometheus (set NCCL_INSPECTOR_PROM_DUMP=0)", ("nccl_bus_", "nccl_p2p_", "nccl_collective_"),
     r"^nccl_(?:bus_bandwidth_gbs|p2p_\w+|collective_\w+)\{"),
    ("nixlbench", ("nixlbench", "Block Size (B)"), r"nixlbench|Block Size \(B\)\s+Batch Size\s+B/W"),
    ("mpiBench", ("START mpiBench",), r"START mpiBench"),
    ("netgauge", ("Netgauge v",), r"\bNetgauge v"),
    ("Sandia's SMB", ("job size:", "msgsize "), r"job size:\s+\d+|msgsize\s+iterations\s+iter_t\s+work_t"),
    ("a web page", ("<!DOCTYPE html", "<html", "<HTML"), r"<!DOCTYPE html|<html|<HTML"),
)  # fmt: skip
_LONGEST = 4096


def unread_tools(lines: Sequence[str]) -> dict[str, int]:
    """Return the tools that printed some of these lines and cannot be imported: the first line (its index) of each."""
    text = "\n".join(lines)
    first_lines: dict[str, int] = {}
    for name, words, form in _UNSUPPORTED:
        if any(word in text for word in words):  # a log of 100,000 lines has none, and this is fast
            index = next((index for index, line in enumerate(lines) if re.search(form, line[:_LONGEST])), None)
            if index is not None:
                first_lines[name] = index
    return first_lines


# First the marks of collbench's own rows, since any text may be between them; then JSON; then text, the most distinct first.
READERS: tuple[Importer[Any], ...] = (
    POD_LOG, NCCL_TESTS_JSON, RCCL_TESTS_FILE, NCCL_INSPECTOR, NVBANDWIDTH_JSON, PARAM, NCCL_TESTS, OSU, IMB, PERFTEST, GLOO, NVBANDWIDTH,
    ALL_REDUCE_BENCH, DEEPEP, FI_PINGPONG, UCX_PERFTEST, MPIGRAPH, GPCNET,
)  # fmt: skip
HEAD = 400


def reader_for(lines: Sequence[str], name: str | None) -> Importer[Any]:
    """Return the reader called `name`, else the one that detects the lines, also after a long start such as NCCL's log.

    Raises UsageError for an unknown name, and for lines of an unknown format.
    """
    names = ", ".join(reader.name for reader in READERS)
    if name is not None:
        named_reader = next((reader for reader in READERS if reader.name == name), None)
        if named_reader is None:
            raise UsageError(f"unknown format --as '{name[:40]}': choose from {names}")
        return named_reader
    for start in range(0, max(1, len(lines)), HEAD):
        head = without_prefixes(lines[start : start + HEAD])
        for reader in READERS:
            if reader.knows(head):
                return reader
    tools = unread_tools(lines[: 10 * HEAD])
    if tools:
        raise UsageError(f"output of {next(iter(tools))} is not supported: supported formats are {names}")
    raise UsageError(f"unknown format: use --as FORMAT ({names})")


# Readers that do not share a file with others: their files have nothing else, or the log around their lines repeats them.
_ALONE = (POD_LOG, NCCL_TESTS_JSON, NCCL_INSPECTOR, NVBANDWIDTH_JSON, RCCL_TESTS_FILE)
_TOGETHER = tuple(reader for reader in READERS if reader not in _ALONE)
_FIGURES = re.compile(r"\s*(?:[\d|]|Final:)")


def read_lines(lines: Sequence[str], name: str | None, user_input: UserInput) -> list[tuple[Importer[Any], Reading]]:
    """Return the content of the lines by reader: the one called `name`, else each one that recognizes lines and reads a row from them.

    Raises UsageError if no reader can read them.
    """
    first = reader_for(lines, name)
    if name is not None or first in _ALONE:
        return [(first, first.read(lines, user_input))]
    chunks: list[tuple[list[int], list[str]]] = []  # (indexes of some lines, their texts without prefixes)
    unread: dict[str, int] = {}
    for start in range(0, len(lines), HEAD):  # no reader recognizes the lines of NCCL's log
        indexes = [index for index in range(start, min(start + HEAD, len(lines))) if " NCCL INFO " not in lines[index]]
        texts = without_prefixes(lines[index] for index in indexes)
        chunks.append((indexes, texts))
        for tool, index in unread_tools(texts).items():
            unread.setdefault(tool, indexes[index] + 1)
    skipped: list[Skipped] = [
        UnsupportedTool(line, f"output of {tool} (from line {line}) is not supported") for tool, line in unread.items()
    ]
    marks = _marks(chunks, first)
    readers = list(dict.fromkeys([first, *(reader for _, reader in marks)]))
    readings: list[tuple[Importer[Any], Reading]] = []
    failures: list[tuple[Importer[Any], UsageError]] = []
    for reader in readers:
        try:
            readings.append((reader, reader.read(_lines_of_tool(lines, marks, reader) if readers[1:] else lines, user_input)))
        except UsageError as error:
            failures.append((reader, error))
    if not readings:
        raise failures[0][1]
    for reader, reason in failures:
        line = next((index + 1 for index, marked_reader in marks if marked_reader is reader), 0)
        skipped.append(Skipped(line, f"lines of {reader.name} (from line {line}): {reason}"))
    reader, reading = readings[0]
    readings[0] = (reader, replace(reading, skipped=(*reading.skipped, *skipped)))
    return readings


def _marks(chunks: Sequence[tuple[list[int], list[str]]], first: Importer[Any]) -> list[tuple[int, Importer[Any]]]:
    """Return (the index of a recognized line, the first reader that recognizes it); nothing if only `first` recognizes lines."""
    recognizing = [[reader for reader in _TOGETHER if reader is first or reader.knows(texts)] for _, texts in chunks]
    if all(readers == [first] for readers in recognizing):
        return []
    marks: list[tuple[int, Importer[Any]]] = []
    for (indexes, texts), readers in zip(chunks, recognizing, strict=True):
        for index, text in zip(indexes, texts, strict=True):
            marks += [(index, reader) for reader in readers if reader.knows([text])][:1]
    return marks


def _lines_of_tool(lines: Sequence[str], marks: Sequence[tuple[int, Importer[Any]]], reader: Importer[Any]) -> list[str]:
    """Return the lines, empty ones in place of those of other tools.

    Lines between the last figures of one tool and the beginning of the next one stay for both: they may end one, or begin the other.
    """
    lines_of_tool = list(lines)
    for (begin, reader_of_mark), (end, next_reader) in zip(marks, [*marks[1:], (len(lines), None)], strict=True):
        if reader_of_mark is reader:
            continue
        first_kept = end
        while next_reader is reader and first_kept > begin + 1 and not _FIGURES.match(split_prefix(lines[first_kept - 1]).text):
            first_kept -= 1  # to the end of the last line of figures; at least one line belongs to what begins there
        lines_of_tool[begin:first_kept] = [""] * (first_kept - begin)
    return lines_of_tool


_ELSEWHERE = ("environment", "devices", "exit_code", "nccl_tuning")  # facts of a table that have their own keys in run.json
_SERIES_OF = attrgetter(*SERIES)


class Source(msgspec.Struct, frozen=True):
    """The file that a table is from: its name without the folder, its size, SHA-256 and format."""

    name: str
    size_bytes: int
    sha256: str
    format: str


class FileTable(msgspec.Struct, frozen=True):
    """A table and its file. `skipped`: tables of that file that were not read, only on its first table."""

    source: Source
    run: ImportedTable
    skipped: tuple[Skipped, ...] = ()


class ImportedRun(msgspec.Struct):
    """The tables that become one run folder."""

    tables: list[FileTable] = msgspec.field(default_factory=list)
    series: set[tuple[Any, ...]] = msgspec.field(default_factory=set)

    @property
    def rows(self) -> list[Row]:
        """All rows, in the order of the tables."""
        return [row for table in self.tables for row in table.run.rows]

    @property
    def arrays(self) -> dict[int, Arrays]:
        """The arrays of the rows, by index of the row."""
        arrays_by_row: dict[int, Arrays] = {}
        first_row = 0
        for table in self.tables:
            arrays_by_row |= {first_row + index: arrays for index, arrays in table.run.arrays.items()}
            first_row += len(table.run.rows)
        return arrays_by_row

    @property
    def operation(self) -> str:
        """The operation of all rows; "import" if there are several."""
        operations = {series[0] for series in self.series}
        return str(operations.pop()) if len(operations) == 1 else "import"

    @property
    def info(self) -> dict[str, Any]:
        """Return run.json: the source of the rows, what is missing, what is doubtful, and hosts and ranks as far as known."""
        first = self.tables[0].run
        info: dict[str, Any] = {}
        codes = [table.run.facts["exit_code"] for table in self.tables if isinstance(table.run.facts.get("exit_code"), int)]
        if codes:
            info["exit_code"] = max(codes)
        rows = self.rows
        versions = {first.tool: first.version or "version unknown"}
        library = first.facts.get("library")
        if isinstance(library, str):  # by its name, as for collbench's own backends
            versions = {"rccl" if any(row.backend == "rccl" for row in first.rows[:1]) else "nccl": library, **versions}
        info["backends"] = dict.fromkeys((row.backend for row in rows), versions)
        if first.hosts:
            printed = first.facts.get("devices")
            devices = {
                device["rank"]: {"local_rank": device["device"], "gpu": device["gpu"], "gpu_name": device["name"]}
                for device in (printed if isinstance(printed, list) else ())
            }
            rank_map = [{"rank": rank, "host": host, **devices.get(rank, {})} for rank, host in enumerate(first.hosts)]
            info |= {"hosts": list(dict.fromkeys(first.hosts)), "rank_map": rank_map}
        if first.facts.get("environment"):
            info["environment"] = first.facts["environment"]
        if first.facts.get("nccl_tuning"):
            info["nccl_log"] = {backend: {"tuning": first.facts["nccl_tuning"]} for backend in info["backends"]}
        missing = list(dict.fromkeys(fact for table in self.tables for fact in table.run.missing))
        doubts = [(table.source.name, table.run.program, doubt) for table in self.tables for doubt in table.run.doubts]
        info["imported"] = {
            "files": list({table.source.sha256: asdict(table.source) for table in self.tables}.values()),
            "tables": [
                {
                    "file": table.source.name,
                    **{name: getattr(table.run, name) for name in ("tool", "version", "program", "statistic")},
                    "rows": len(table.run.rows),
                    "facts": {name: value for name, value in table.run.facts.items() if name not in _ELSEWHERE},
                }
                for table in self.tables
            ],
            "missing": [fact.render() for fact in missing],
            "missing_facts": as_json(missing),
            "doubts": [f"{file}, {program}: {doubt.render()}" for file, program, doubt in doubts],
            "doubt_facts": [{"file": file, "program": program, "fact": as_json(doubt)} for file, program, doubt in doubts],
        }
        unused = [
            {"file": table.source.name, "program": table.run.program, **asdict(option)}
            for table in self.tables
            for option in table.run.contradicted
        ]
        skipped = [{"file": table.source.name, **asdict(reason)} for table in self.tables for reason in table.skipped]
        for name, entries in (("unused_options", unused), ("skipped", skipped)):
            if entries:
                info["imported"][name] = entries
        return info


def together(tables: Iterable[FileTable]) -> list[ImportedRun]:
    """Return the tables by run: each joins the first run of the same tool, library, settings and hosts that lacks its series."""
    all_runs: list[ImportedRun] = []
    runs_by_maker: dict[tuple[Any, ...], list[ImportedRun]] = {}
    first_free: dict[tuple[Any, ...], int] = {}  # by maker and series: the index of the maker's first run that lacks it
    for table in tables:
        run = table.run
        settings = run.facts.get("environment")
        settings = tuple(sorted(settings.items())) if isinstance(settings, dict) else ()
        maker = run.tool, run.version, run.facts.get("library"), settings, tuple(run.hosts)
        all_series = set(map(_SERIES_OF, run.rows))
        runs = runs_by_maker.setdefault(maker, [])
        index = max((first_free.get((maker, series), 0) for series in all_series), default=0)
        while index < len(runs) and not runs[index].series.isdisjoint(all_series):
            index += 1
        if index == len(runs):
            runs.append(ImportedRun())
            all_runs.append(runs[index])
        runs[index].tables.append(table)
        runs[index].series |= all_series
        first_free |= {(maker, series): index + 1 for series in all_series if first_free.get((maker, series), 0) == index}
    return all_runs


def store(
    runs: Sequence[ImportedRun], out: Path, command: Sequence[str], allocation: str | None, topology: Mapping[str, Any] | None
) -> list[Path]:
    """Write the runs: one as `out` itself, several as out/launch-1, launch-2, … Return the folders.

    With an `allocation`, several runs are launches of it; without, each is independent. Raises UsageError if a run exists there.
    """
    if any(out.glob("launch-*")):
        raise UsageError(f"--out {out} already has launches: choose a new folder")
    paths = [out] if len(runs) == 1 else [out / f"launch-{number}" for number in range(1, len(runs) + 1)]
    shared = {"collbench": __version__, "command": ["collbench", *command], "allocation_id": allocation, "launches": len(runs)}
    write_all(
        FinishedRun(path, run.operation, {**shared, "launch_index": number, **run.info}, run.rows, topology, run.arrays)
        for number, (path, run) in enumerate(zip(paths, runs, strict=True), 1)
    )
    return paths
