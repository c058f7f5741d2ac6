"""Read the output of nvbandwidth, as text and with -j: one matrix of GB/s (10**9 bytes) or ns per test case (source of 0.8).

Rows are the pairs of a matrix. The size of a copy is not printed. Times are computed for the default, 512 MiB. The tool compares the
data of each copy and aborts if it is wrong, unless it has --skipVerification. A test case without a matrix is a row without figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.importers.importer import ImportedTable, Importer, UserInput
from collbench.plugins.importers.log_context import Contexts
from collbench.plugins.importers.notes import Missing, MissingItem, NotInOutput, SkippedLines, SkippedReason, lacks
from collbench.plugins.importers.rows import RowKind, is_time, parse_number, short
from collbench.results.row import Row
from collbench.results.store import parse_object
from collbench.untrusted import dict_of, list_of

_VERSION = re.compile(r"nvbandwidth Version: v?(\S{1,40})")
_CASE = re.compile(r"(Running|Waiving) (\w{3,80})\.\s*$")
_STATUS = re.compile(r"\s{0,8}(Waived|Error|ERROR): ?(.{0,400})$")  # of versions since 0.5: "Waived:" has no name
_UNVERIFIED = re.compile(r"nvbandwidth\s(?:.{0,400}\s)?(?:-s|--skipVerification)(?=\s|$)")
_DESCRIPTION = re.compile(r"(?:memcpy|memory latency|multicast|Device to Device|Bisect)\b.{0,200}")
_SUM = re.compile(r"(?:SUM|&&&& PERF) (\w{3,80}) ")
_DEVICE = re.compile(r"(?:Device|device) (\d{1,4}): (.{1,100}?) \(([0-9a-fA-F:.]{8,20})\)")
_LISTED_DEVICE = re.compile(r"(\d{1,4}): (.{1,100}?) \(([0-9a-fA-F:.]{8,20})\)")
_PROCESS = re.compile(r"Process\s+(\d{1,7}) \((\S{1,256})\): device")
_PART = re.compile(r"(Read1|Read2|Write1|Write2|Total) bandwidth")
_UNIT = re.compile(r"\((\w{0,3}s|\w{1,3}/s)\)")
_SIZE = 512 << 20
_UNNAMED = "nvbandwidth"
_WAIVED = "waived by nvbandwidth: not possible on this machine"
_UNFINISHED = "nvbandwidth printed no figures: the test case failed, or the program was stopped"
_VERIFIES = "data verified after each copy, the default"
_MOST = 4096  # rows or columns


class _NvbandwidthHead(msgspec.Struct):
    version: str | None = None
    devices: list[dict[str, Any]] = msgspec.field(default_factory=list)
    hosts: dict[int, str] = msgspec.field(default_factory=dict)
    verified: bool = True
    waived: int = 0  # test cases without a name

    def take(self, line: str) -> None:
        if version := _VERSION.search(line):
            self.version = version[1]
        elif process := _PROCESS.search(line):
            self.hosts[int(process[1])] = short(process[2])
        elif device := _DEVICE.search(line):
            self.devices.append(_device(device))
        elif _UNVERIFIED.search(line):
            self.verified = False


class _Matrix(msgspec.Struct):
    """One test case: its rows of figures by the labels of their lines, None for a missing value.

    head      the values of the whole output
    problem   why the test case has no figures, as far as the tool printed it
    """

    head: _NvbandwidthHead
    name: str
    number: int
    description: str = ""
    problem: str = ""
    columns: list[str] = msgspec.field(default_factory=list)
    rows: list[tuple[int, str, list[float | None]]] = msgspec.field(default_factory=list)


def knows(lines: Sequence[str]) -> bool:
    """Return whether the lines have nvbandwidth's title, or that of a matrix."""
    return any(_VERSION.search(line) or ("memcpy " in line and "GPU(" in line and "(GB/s)" in line) for line in lines)


def knows_json(lines: Sequence[str]) -> bool:
    """Return whether the lines have nvbandwidth's JSON object."""
    return any(re.match(r'\s*\{?\s*"nvbandwidth"\s*:', line) for line in lines)


def _in_text(lines: Sequence[str]) -> list[_Matrix]:
    head = _NvbandwidthHead()
    matrices: list[_Matrix] = []
    name = ""
    for number, line in enumerate(lines, 1):
        last = matrices[-1] if matrices else None
        if case := _CASE.search(line):
            name = case[2]
            matrices.append(_Matrix(head, name, number, problem=_WAIVED if case[1] == "Waiving" else ""))
        elif total := _SUM.match(line.strip()):
            if last:
                last.name = total[1]
        elif description := _DESCRIPTION.match(line.strip()):  # begins the first matrix of the test case that runs, or a further one of it
            part = _PART.search(description[0])
            label = f"{name}_{part[1].lower()}" if part else name or _UNNAMED
            if last and not last.description and not last.problem:
                last.name = label
                last.description = description[0]
            else:
                matrices.append(_Matrix(head, label, number, description[0]))
        elif status := _STATUS.match(line):
            if status[1] == "Waived":
                head.waived += 1
            elif last and not last.rows:
                last.problem = f"nvbandwidth: {short(status[2].strip()) or 'error'}"
        elif last and last.description:
            _take(last, line, number)
        else:
            head.take(line)
    return [matrix for matrix in matrices if matrix.rows or matrix.name != _UNNAMED]


def _device(match: re.Match[str]) -> dict[str, Any]:
    number, name, address = match.groups()
    return {"rank": int(number), "device": int(number), "gpu": short(address), "name": short(name)}


def _take(matrix: _Matrix, line: str, number: int) -> None:
    words = line.split()
    if not words or len(words) > _MOST:
        return
    if not matrix.columns:
        if all(word.isdecimal() for word in words) or all(parse_number(word) is None for word in words):
            matrix.columns = words
    elif len(words) == len(matrix.columns) + 1 and all(word == "N/A" or parse_number(word) is not None for word in words[1:]):
        matrix.rows.append((number, words[0], [parse_number(word) for word in words[1:]]))


def _in_json(lines: Sequence[str]) -> Iterator[_Matrix]:
    """Yield the matrices of JSON, also with other lines before or after it. Raises UsageError for incomplete JSON."""
    text = "\n".join(lines)
    try:
        document = parse_object(text[text.find("{") : text.rfind("}") + 1].encode())
    except ValueError as error:
        raise UsageError(f"the file is {error}: use the whole output of nvbandwidth -j") from error
    fields = dict_of(document.get("nvbandwidth"))
    head = _NvbandwidthHead(short(str(fields["version"])) if fields.get("version") else None)
    for device in list_of(fields.get("GPU Device list"), object):
        match = _LISTED_DEVICE.match(str(device))
        if match:
            head.devices.append(_device(match))
    cases: list[Any] = list_of(fields.get("testcases"), object)
    for number, case in enumerate(cases, 1):
        if not isinstance(dict_of(case).get("name"), str):
            continue
        name = short(case["name"])
        description = short(str(case.get("bandwidth_description", "")))
        table = [[parse_number(str(value)) for value in row] for row in list_of(case.get("bandwidth_matrix"), list)][:_MOST]
        if not table:
            failure = str(case.get("error") or (number == len(cases) and fields.get("error")) or "")
            problem = f"nvbandwidth: {printable(failure, 160)}" if failure else ""
            if str(case.get("status", "")) == "Waived":
                problem = _WAIVED
            if name != _UNNAMED:
                yield _Matrix(head, name, number, description, problem=problem)
            continue
        columns = max((len(row) for row in table), default=0)
        # A bidirectional test prints its matrices one below the other.
        parts = len(table) // columns if columns and _PART.search(description) and len(table) % columns == 0 else 1
        height = len(table) // max(parts, 1)
        for part in range(parts):
            label = name
            if parts > 1:  # as in the text: read1, read2, total
                label += "_total" if part == 2 and parts == 3 else f"_{'write' if 'write' in name else 'read'}{part + 1}"
            rows = [(number, str(i), row) for i, row in enumerate(table[part * height : (part + 1) * height])]
            yield _Matrix(head, label, number, description, columns=[str(i) for i in range(columns)], rows=rows)


def _runs(matrix: _Matrix, user_input: UserInput, _contexts: Contexts) -> Iterator[ImportedTable]:
    head = matrix.head
    is_latency = "(ns)" in matrix.description
    unit = _UNIT.search(matrix.description)
    if unit and unit[1] not in ("GB/s", "ns"):
        raise UsageError(f"line {matrix.number}: {matrix.name} is in the unknown unit {unit[1]}: use the output of a known version")
    ranks = sorted(head.hosts)
    hosts = [head.hosts[rank] for rank in ranks] if ranks == list(range(len(ranks))) else []
    statistic = "the tool's median over its samples" if is_latency else "the tool's median over its samples, the copy's size assumed"
    verified = head.verified and not is_latency
    api = "sm" if " SM " in f" {matrix.description} " or matrix.name.endswith("sm") else "ce"
    nodes = user_input.nodes or len(set(hosts)) or 1
    kind = RowKind(
        matrix.name, "cuda", api, "uint8", 2, nodes, statistic, "cuda", mode="batched", like=None if is_latency else "p2p_bandwidth"
    )
    rows: list[Row] = []
    if not any(value for _, _, values in matrix.rows for value in values):
        rows.append(replace(kind, like=None).without_figures(0, 0, matrix.number, matrix.problem or _UNFINISHED))
    for line, label, values in matrix.rows:
        for column, value in zip(matrix.columns, values, strict=False):
            if not value:
                continue  # N/A, and the 0.00 of a GPU with itself
            time_s = value / 1e9 if is_latency else _SIZE / (value * 1e9)
            if is_time(time_s):
                group = f"gpu {column}" if len(matrix.rows) == 1 else f"{label}-{column}"
                pair_kind = replace(kind, also={"group": group})
                wrong = 0 if verified else None
                rows.append(pair_kind.row(0 if is_latency else _SIZE, time_s, line=line, wrong=wrong))
    missing: list[Missing] = [*lacks(MissingItem.INTERVAL, MissingItem.SAMPLES)]
    missing += [NotInOutput(MissingItem.OPTIONS, assumed=_VERIFIES)] if verified else lacks(MissingItem.VERIFICATION)
    if not is_latency:
        missing.append(NotInOutput(MissingItem.SIZE, assumed="512 MiB, the default"))
    if head.waived:
        missing.append(SkippedLines(head.waived, SkippedReason.WAIVED, unit="test case"))
    facts = {"devices": head.devices} if head.devices and not hosts else {}
    yield ImportedTable("nvbandwidth", head.version, matrix.name, statistic, rows, hosts, facts, missing)


_EMPTY = "no test case found: use the output of nvbandwidth from its title on"
NVBANDWIDTH = Importer("nvbandwidth", "nvbandwidth, text", knows, _in_text, _runs, empty=_EMPTY)
NVBANDWIDTH_JSON = Importer("nvbandwidth-json", "nvbandwidth, JSON (-j)", knows_json, _in_json, _runs, empty=_EMPTY, tagged=True)
