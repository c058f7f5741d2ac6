"""Text of `nvidia-smi topo -m` and `topo -p2p`, `nvidia-smi nvlink -s`, `amd-smi topology` and `rocm-smi --showtopo`.

Terms: docs.nvidia.com/deploy/nvidia-smi ("topo"), and the legend that the tool prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import msgspec
from msgspec.structs import replace

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic, with_reasons
from collbench.machine.readers.text import HEAD, Reader, Unreadable, bounded, cpu_list, few, json_of, numa_of, pci_address, printable, whole

# AMD's tools: `amd-smi topology`, as text or with --json, and `rocm-smi --showtopo`. Both have a table per title, with a row and a column
# per GPU: by PCI address, and by number. Neither counts links.
#
# Form: the tables "ACCESS TABLE:", "LINK TYPE TABLE:" … of amd-smi, "Link Type between two GPUs" and "Numa Nodes" of rocm-smi
# (rocm.docs.amd.com, "amd-smi topology" and "rocm-smi --showtopo").

AMD_KIND, ROCM_KIND = "amd-smi topology", "rocm-smi --showtopo"
_MOST_CHARACTERS = 4 << 20
_MOST_GPUS = 256
_LINK_TYPES = ("XGMI", "PCIE")
_AMD_TITLE = re.compile(r"^[ \t]*([A-Z][A-Z -]{2,40}) TABLE:[ \t]*\r?$", re.MULTILINE)
_ROCM_TITLE = re.compile(r"^\s*=+\s*(.*?)\s*=+\s*$")
_ROCM_GPU = re.compile(r"GPU(\d{1,3})")
_ROCM_NUMA = re.compile(r"^[ \t]*GPU\[(\d{1,3})\]\s*:\s*\(Topology\) Numa (Node|Affinity):\s*(-?\d+)[ \t]*\r?$", re.MULTILINE)
_UNCOUNTED = "{} which GPUs xGMI joins, {} links: read the machine's /sys/class/kfd too"


class _GpuTables(msgspec.Struct):
    """The GPUs of a text with their index, and the cells of the tables that are read, by title and by pair of GPUs."""

    gpus: dict[str, int] = msgspec.field(default_factory=dict)
    cells: dict[str, dict[tuple[str, str], str]] = msgspec.field(default_factory=dict)


def _gpu_tables(text: str, name: str, tool: str, titles: re.Pattern[str], read_titles: Sequence[str]) -> _GpuTables:
    """Return the tables of AMD's tools. Raises Unreadable for a table that is there twice, and for rows that do not fit."""
    tables = _GpuTables()
    columns: list[str] = []
    title = ""
    for line in text.splitlines():
        if match := titles.match(line[:400]):
            title = match[1]
            columns = []
            if title in tables.cells:
                raise Unreadable(f"{printable(name)} has two tables {printable(title)}: give the output for one machine")
            if title in read_titles:
                tables.cells[title] = {}
            continue
        words = line.split()
        numbers = [_ROCM_GPU.fullmatch(word) for word in words]  # "GPU3"; else a PCI address
        gpus = [f"gpu{int(number[1])}" if number else pci_address(word) for word, number in zip(words, numbers, strict=True)]
        if words and all(gpus) and not columns:
            columns = [gpu for gpu in gpus if gpu]
            if len(columns) > _MOST_GPUS or len(set(columns)) != len(columns):
                raise Unreadable(f"{printable(name)} lists a GPU twice, or more than {_MOST_GPUS}: save the output of `{tool}` again")
            tables.gpus = {gpu: index for index, gpu in enumerate(columns)} | tables.gpus
        elif title in tables.cells and columns and words and (gpu := gpus[0]):
            if len(words) != len(columns) + 1 or gpu not in columns:
                raise Unreadable(f"{printable(name)}: row {words[0]} does not fit its heading: save the output of `{tool}` again")
            tables.cells[title] |= {(gpu, peer): cell for peer, cell in zip(columns, words[1:], strict=True)}
    return tables


def looks_like_amd(start: str) -> bool:
    """Return whether the start of a text has amd-smi's tables with PCI addresses, or its JSON."""
    if start.lstrip().startswith("["):
        return '"link_type"' in start and '"bdf"' in start
    return bool({"LINK TYPE", "ACCESS", "WEIGHT", "HOPS"} & set(_AMD_TITLE.findall(start)))


def read_amd(text: str, name: str) -> Machine:
    """Return the GPUs by PCI address, with "XGMI" or "PCIE" as the path of a pair, and peer access. Raises Unreadable for invalid rows."""
    bounded(text, name, _MOST_CHARACTERS, "a machine's GPUs fill", "give the output for one machine")
    if text.lstrip().startswith("["):
        tables = _json_tables(text, name)
    else:
        tables = _gpu_tables(text, name, AMD_KIND, _AMD_TITLE, ("LINK TYPE", "ACCESS"))
    if not tables.gpus:
        raise Unreadable(f"{printable(name)} lists no GPU: save the output of `amd-smi topology` again")
    link_types = tables.cells.get("LINK TYPE", {})
    paths = {pair: word for pair, word in link_types.items() if word in _LINK_TYPES and pair[0] != pair[1]}
    words = {"ENABLED": "OK", "DISABLED": "NS"}
    access = tables.cells.get("ACCESS", {})
    return Machine(
        sources=(f"{AMD_KIND} {printable(name)}",),
        gpus=tuple(Gpu(address, index=index, address=address, vendor="amd") for address, index in tables.gpus.items()),
        gpu_links=_no_xgmi(tables.gpus, paths),
        paths=paths,
        peer_access={pair: words[word] for pair, word in access.items() if word in words and pair[0] != pair[1]},
        unknown={"gpu_links": _UNCOUNTED.format("amd-smi prints", "not by how many")} if "XGMI" in link_types.values() else {},
    )


def _no_xgmi(gpus: Iterable[str], paths: Mapping[tuple[str, str], str]) -> tuple[GpuLink, ...]:
    """Return that GPUs have no xGMI link, where the path of every pair is PCIe; otherwise () for an unknown number of links."""
    keys = list(gpus)
    only_pcie = len(keys) > 1 and all(paths.get(pair) == "PCIE" for pair in permutations(keys, 2))
    return tuple(GpuLink(key, None, 0, "xgmi") for key in keys) if only_pcie else ()


def _json_tables(text: str, name: str) -> _GpuTables:
    rows = json_of(text, f"{printable(name)}: invalid JSON, perhaps cut off: save the output of `amd-smi topology --json` again")
    tables = _GpuTables(cells={"LINK TYPE": {}, "ACCESS": {}})
    for row in rows:
        gpu = _address(row)
        index = whole(str(row.get("gpu")), 0, _MOST_GPUS - 1) if isinstance(row, Mapping) else None
        if gpu is None or index is None or gpu in tables.gpus:
            raise Unreadable(f"{printable(name)}: an entry has no 'gpu' and 'bdf' of its own: save `amd-smi topology --json` again")
        tables.gpus[gpu] = index
        for link in row.get("links") or ():
            if peer := _address(link):
                tables.cells["LINK TYPE"][gpu, peer] = str(link.get("link_type"))
                tables.cells["ACCESS"][gpu, peer] = str(link.get("link_status"))
    return tables


def _address(entry: object) -> str | None:
    return pci_address(str(entry.get("bdf"))) if isinstance(entry, Mapping) else None


AMD_SMI = Reader(AMD_KIND, looks_like_amd, read_amd)


def read_rocm(text: str, name: str) -> Machine:
    """Return the GPUs ("gpu0"…), with the link type, "XGMI" or "PCIE", as their path. Raises Unreadable for invalid rows."""
    title = "Link Type between two GPUs"
    tables = _gpu_tables(text, name, ROCM_KIND, _ROCM_TITLE, (title, "Numa Nodes"))
    links = tables.cells.get(title, {})
    for (gpu, peer), cell in links.items():
        if cell != "0" and (gpu == peer or cell not in (*_LINK_TYPES, "N/A")):
            raise Unreadable(f"{printable(name)}: row {gpu.upper()} does not fit its heading: save the output of `{ROCM_KIND}` again")
    # the affinity is that of the CPUs and takes precedence over the node
    affinity_last = sorted(((word, int(gpu), numa_of(node)) for gpu, word, node in _ROCM_NUMA.findall(text)), reverse=True)
    numa = {gpu: node for _, gpu, node in affinity_last if node is not None}
    indexes = sorted({*tables.gpus.values(), *numa})
    if not indexes:
        raise Unreadable(f"{printable(name)} names no GPU: save the output of `{ROCM_KIND}` into it")
    paths = {pair: cell for pair, cell in links.items() if cell in _LINK_TYPES}
    unknown = {"gpu_links": _UNCOUNTED.format("rocm-smi shows", "but not the number of")} if "XGMI" in paths.values() else {}
    if numa:
        unknown["numa_nodes"] = "rocm-smi names only the nodes nearest to GPUs"
    machine = Machine(
        sources=(f"{ROCM_KIND} {printable(name)}",),
        gpus=tuple(Gpu(f"gpu{index}", index=index, vendor="amd", numa=numa.get(index)) for index in indexes),
        gpu_links=_no_xgmi((f"gpu{index}" for index in indexes), paths),
        paths=paths,
        unknown=unknown,
    )
    return with_reasons(machine, "rocm-smi", {"gpus"})


def _is_rocm(text: str) -> bool:
    return "Link Type between two GPUs" in text or "(Topology) Numa" in text


# `nvidia-smi nvlink -s`: the NVLinks of each GPU, with the speed of the active ones; `nvidia-smi c2c -s`: links to the CPU.

NVLINK_STATUS_KIND = "nvidia-smi nvlink -s"
_GPU = re.compile(r"^\s*GPU (\d{1,3}): (.{1,200}?)(?: \(UUID: (GPU-[0-9a-fA-F-]{8,64})\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d{1,3}): (?:<(inactive)>|(\d{1,4}(?:\.\d{1,6})?) GB/s)\s*$", re.IGNORECASE)
_C2C = re.compile(r"^\s*C2C Link (\d{1,3}): (\d{1,4}(?:\.\d{1,6})?) GB/s\s*$", re.IGNORECASE)
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_NVLINK_STATUS_MOST_CHARACTERS = 2 << 20
_MOST_GB_PER_S = 200.0  # of one link; generation 5 prints 53.125


class _Status(msgspec.Struct):
    """The links of one GPU in the text: GB/s by link number, None for an inactive one."""

    model: str
    uuid: str | None
    links: dict[int, float | None] = msgspec.field(default_factory=dict)
    all_inactive: bool = False
    c2c: dict[int, float] = msgspec.field(default_factory=dict)
    complete: bool = False  # the list of its NVLinks is complete


def looks_like_nvlink_status(start: str) -> bool:
    """Return whether the start of a text has lines "GPU 0: …" followed by "Link 0: …" or "C2C Link 0: …"."""
    lines = start.splitlines()
    return any(map(_GPU.match, lines)) and any(_LINK.match(line) or _C2C.match(line) or _ALL_INACTIVE.search(line) for line in lines)


def read_nvlink_status(text: str, name: str) -> Machine:
    """Return GPUs "gpu0"… with their number of links, `bytes_per_s` as printed; the far ends are unknown.

    Raises Unreadable when no GPU is listed, one is listed twice, or a link's line cannot be read.
    """
    statuses = _statuses(text, name)
    if not statuses:
        raise Unreadable(f"{printable(name)} lists no GPU: save the output of `nvidia-smi nvlink -s` into it")
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    unknown: dict[str, str] = {}
    doubts: list[str] = []
    most = max(len(status.links) for status in statuses.values())
    for index, status in statuses.items():
        key = f"gpu{index}"
        speeds = sorted(speed for speed in status.links.values() if speed is not None)
        c2c_speeds = set(status.c2c.values())
        gpus.append(Gpu(
            key, index=index, vendor="nvidia", model=status.model, uuid=status.uuid,
            links_off=len(status.links) - len(speeds) if status.links else None,
            c2c_links=len(status.c2c) or None, c2c_bytes_per_s=c2c_speeds.pop() * 1e9 if len(c2c_speeds) == 1 else None,
        ))  # fmt: skip
        if status.links or status.all_inactive:
            links.append(GpuLink(key, None, len(speeds), bytes_per_s=speeds[0] * 1e9 if len(set(speeds)) == 1 else None))
        else:
            unknown[f"gpus/{key}/links_off"] = "the file lists no links of it"
        if len(set(speeds)) > 1:
            doubts.append(f"the links of {key} run at different speeds, {speeds[0]:g} to {speeds[-1]:g} GB/s")
        if set(status.links) != set(range(len(status.links))) or 0 < len(status.links) < most:
            doubts.append(f"{key} lists {len(status.links)} links, others {most}: the file may be cut")
    if not links:
        unknown["gpu_links"] = "the file lists no NVLinks"  # as `c2c -s` does
    source = f"{NVLINK_STATUS_KIND} {printable(name)}"
    return Machine(sources=(source,), gpus=tuple(gpus), gpu_links=tuple(links), unknown=unknown, doubts=few(doubts))


def _statuses(text: str, name: str) -> dict[int, _Status]:
    bounded(text, name, _NVLINK_STATUS_MOST_CHARACTERS, "a machine's NVLinks", "give one machine's output")
    statuses: dict[int, _Status] = {}
    current: _Status | None = None
    for line in text.splitlines():
        if match := _GPU.match(line[:400]):  # which may be repeated below another tool's heading
            current = statuses.setdefault(int(match[1]), _Status(printable(match[2]), match[3]))
            if (current.model, current.uuid) != (printable(match[2]), match[3]):
                raise Unreadable(f"{printable(name)} lists GPU {int(match[1])} twice: give the output for one machine")
            current.complete = bool(current.links) or current.all_inactive
        elif current and (match := _C2C.match(line[:400])):
            current.c2c[int(match[1])] = float(match[2])
        elif current and _ALL_INACTIVE.search(line[:400]):
            current.all_inactive = True
        elif line.lstrip().startswith("Link "):
            _add_link(current, line, name)
    return statuses


def _add_link(status: _Status | None, line: str, name: str) -> None:
    if status and status.complete:
        raise Unreadable(f"{printable(name)} lists the NVLinks of a GPU twice: give the output for one machine")
    match = _LINK.match(line[:400])
    speed = float(match[3]) if match and match[3] else None
    if not match or not status or int(match[1]) in status.links or (speed is not None and not 0 < speed <= _MOST_GB_PER_S):
        raise Unreadable(
            f"{printable(name)}: the line {printable(line.strip(), 60)!r} is not an NVLink status: save `nvidia-smi nvlink -s` again"
        )
    status.links[int(match[1])] = speed


NVLINK_STATUS = Reader(
    NVLINK_STATUS_KIND,
    looks_like_nvlink_status,
    read_nvlink_status,
    lists=frozenset({"gpus", "gpu_links"}),
    starts=_GPU.match,
)


# The tables of `nvidia-smi topo`, from text that terminals, tickets and chats have changed: columns may be joined, but not shifted.
#
# A row's cells are words of a small known set, so joined ones ("SYSSYS", "PXBSYS", "X SYS") can be separated without the white space.
# Every row must have as many cells as the header has columns, and its X at its own column; otherwise the table is rejected.

_MOST_COLUMNS, _TABLE_MOST_CHARACTERS = 256, 2 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[[0-9]{1,2}m(?=\s*GPU|\s*$)")
_ANY_COLOUR = re.compile(r"\x1b?\[[0-9;]*m")
_TABLE_GPU = re.compile(r"GPU(\d{1,3})(?!\d)")
_COLUMN = re.compile(r"\s*(GPU\d{1,3}|NIC\d{1,3}|mlx\d_(?:bond_)?\d{1,3}|[A-Za-z][\w.:-]{0,63})")
_PATH = re.compile(r"\s*(NV\d{1,2}|SYS|SOC|NODE|PHB|PXB|PIX|PSB|X)")
_TABLE_ACCESS = re.compile(r"\s*(CNS|GNS|TNS|NS|OK|DR|U|X)")
_FOREIGN = re.compile(r"(?!NV\d)[A-Z]{2,6}\d{0,2}")  # "MT2" of mthreads-gmi, "HCCS" of npu-smi
_AFFINITIES = re.compile(r"CPU Affinity|NUMA Affinity|GPU NUMA ID")
_LEGEND = re.compile(r"^\s*(NIC\d{1,3})\s*:\s*([\w.-]{1,64})\s*$")


@dataclass
class SmiMatrix:
    """One matrix: `rows` by name, a cell per column; `rest` is the text after a row's cells; `affinities` the last headings."""

    columns: tuple[str, ...]
    affinities: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    rest: dict[str, str]
    is_access: bool

    def __post_init__(self) -> None:
        self._places = {column: place for place, column in enumerate(self.columns)}
        self.gpus = {column: int(column[3:]) for column in self.columns if _TABLE_GPU.fullmatch(column)}  # with their index

    def cell(self, a: str, b: str) -> str | None:
        """Return the entry between two columns, from the other half of the table if the row is missing; None if both are."""
        row = self.rows.get(a)
        if row:
            return row[self._places[b]]
        mirrored_row = self.rows.get(b)
        return mirrored_row[self._places[a]] if mirrored_row else None

    def affinity(self, gpu: str) -> dict[str, str]:
        """Return the last columns of a GPU's row by their headings; {} if white space does not show which is which."""
        rest = self.rest.get(gpu, "")
        cells = [cell.strip() for cell in rest.split("\t")[1:]] if "\t" in rest else rest.split()
        if len(cells) > len(self.affinities):  # some drivers print a second tab
            cells = [cell for cell in cells if cell]
        is_clear = len(cells) >= len(self.affinities) or (cells and _CPUS.fullmatch(cells[0]))
        return dict(zip(self.affinities, cells, strict=False)) if is_clear else {}


def _tables(text: str, name: str) -> list[SmiMatrix]:
    """Return every table of the text, in order. Raises Unreadable for a row that does not fit its header."""
    bounded(text, name, _TABLE_MOST_CHARACTERS, "a machine's matrices", "give one machine's output")
    headings: list[tuple[tuple[str, ...], tuple[str, ...], list[tuple[str, str]]]] = []
    row = re.compile("")
    for line in _plain(text):
        if columns := header(line):
            headings.append((columns, tuple(_AFFINITIES.findall(line)), []))
            longest_first = sorted(columns, key=len, reverse=True)
            row = re.compile(rf"\s*({'|'.join(map(re.escape, longest_first))})(?!\d)(.*)")
        elif headings and (match := row.match(line)) and _is_cell(match[2]):
            headings[-1][2].append((match[1], match[2]))
    return [_table(columns, affinities, rows, name) for columns, affinities, rows in headings if rows]


def header(line: str) -> tuple[str, ...]:
    """Return the columns in a heading; () when the line is not a heading."""
    if not _TABLE_GPU.match(line.strip()):
        return ()
    names = _AFFINITIES.split(line)[0]
    first = _TABLE_GPU.match(names.strip())
    if not first or _is_cell(names.strip()[first.end() :]):
        return ()
    columns, _ = _first_words(names, _COLUMN)
    return tuple(columns) if len(set(columns)) == len(columns) <= _MOST_COLUMNS else ()


def _first_words(text: str, word: re.Pattern[str]) -> tuple[list[str], int]:
    """Return the words that the text begins with, which may be joined, and their end."""
    words: list[str] = []
    end = 0
    while match := word.match(text, end):
        words.append(match[1])
        end = match.end()
    return words, end


def _plain(text: str) -> Iterable[str]:
    return (_COLOUR.sub("", line).rstrip("\r") for line in text.splitlines() if len(line) < 1 << 14)


def _is_cell(text: str) -> bool:
    """Return whether the text begins with a cell. Then a line that begins with a GPU's name is a row."""
    match = _PATH.match(text) or _TABLE_ACCESS.match(text)
    return match is not None and not re.match(r"[a-z_]", text[match.end() :])


def _table(columns: tuple[str, ...], affinities: tuple[str, ...], lines: Sequence[tuple[str, str]], name: str) -> SmiMatrix:
    """Return the table. Raises Unreadable if a row has too few or too many cells, or if they are shifted."""
    has_paths = any(_PATH.match(word) and word != "X" for _, text in lines for word in text.split())
    table = SmiMatrix(columns, affinities, {}, {}, is_access=not has_paths and not affinities and len(columns) > 1)
    alphabet = _TABLE_ACCESS if table.is_access else _PATH
    for row, text in lines:
        if row in table.rows:
            raise Unreadable(f"{printable(name)} has two rows {row} under one heading: give the output for one machine")
        cells, end = _first_words(text, alphabet)
        words = text.split()
        if len(words) >= len(columns) > len(cells) and _FOREIGN.fullmatch(words[len(cells)]):
            raise Unreadable(
                f"{printable(name)} has the cell {printable(words[len(cells)])}, which is not of nvidia-smi: collbench reads matrices of "
                "`nvidia-smi topo -m`, `amd-smi topology` and `rocm-smi --showtopo` only; use `collbench probe --gather` on the machine"
            )
        if len(cells) != len(columns) or [column for column, cell in zip(columns, cells, strict=True) if cell == "X"] != [row]:
            raise Unreadable(
                f"{printable(name)}: row {row} does not fit the {len(columns)} columns of its heading ({len(cells)} cells read), "
                "so its cells may be shifted: save the output of `nvidia-smi topo -m` into a file again"
            )
        table.rows[row] = tuple(cells)
        table.rest[row] = text[end:]
    return table


KIND = "nvidia-smi topo -m"
_OLD_WORDS = {"SOC": "SYS", "PSB": "PIX"}  # of nvidia-smi before CUDA 9, and for two GPUs of one board
_MOST_LINKS = 18  # of one GPU, generations 4 and 5; a row of direct links cannot have more
_CUT = re.compile(r"(\d{1,6}) NICs found in the topology, only displaying (\d{1,6})")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def looks_like(start: str) -> bool:
    """Return whether the start of a text has a heading of GPU columns followed by a row, or the tables of rocm-smi."""
    return _is_rocm(start) or ("GPU0" in start and any(header(line) for line in _ANY_COLOUR.sub("", start).splitlines()))


def starts(line: str) -> bool:
    """Return whether the line is the heading of a matrix, or of a table of rocm-smi."""
    return bool(header(_ANY_COLOUR.sub("", line)) or _ROCM_TITLE.match(line[:400]))


def read(text: str, name: str) -> Machine:
    """Return the machine from its matrices. GPU keys are "gpu0"; NICs have the legend's names, else the columns'.

    Raises Unreadable without a table, for tables of two machines, and for a row's cells that do not fit its heading.
    """
    if _is_rocm(text[:HEAD]):
        return read_rocm(text, name)
    tables = _tables(text, name)
    if not tables:
        raise Unreadable(f"{printable(name)} has no matrix of GPUs: save the output of `nvidia-smi topo -m` into it")
    matrices = [table for table in tables if not table.is_access]
    if len(matrices) > 1:
        raise Unreadable(f"{printable(name)} has {len(matrices)} topology matrices: give the output for one machine")
    access = [table for table in tables if table.is_access]
    peer_access: dict[tuple[str, str], str] = {}  # from the first matrix that shows a pair; later ones are of other kinds of access
    differ: dict[str, None] = {}
    for table in access:
        for a, b in permutations(table.gpus, 2):
            word = table.cell(a, b)
            pair = (f"gpu{table.gpus[a]}", f"gpu{table.gpus[b]}")
            if word and peer_access.setdefault(pair, word) != word:
                differ[f"the peer-to-peer matrices differ from {pair[0]} to {pair[1]}: {peer_access[pair]}, then {word}"] = None
    if matrices:
        machine = _machine(matrices[0], text)
    else:
        machine = Machine(gpus=tuple(Gpu(f"gpu{index}", index=index, vendor="nvidia") for index in access[0].gpus.values()))
    source = f"{KIND} {printable(name)}"
    return replace(machine, sources=(source,), peer_access=peer_access, doubts=(*few(list(differ)), *machine.doubts))


def _machine(table: SmiMatrix, text: str) -> Machine:
    legend = {match[1]: match[2] for line in _plain(text) if (match := _LEGEND.match(line))}
    if len(set(legend.values())) < len(legend):  # one name for two columns
        legend = {}
    nics = {column: legend.get(column, column) for column in table.columns if column not in table.gpus}
    keys = {column: f"gpu{index}" for column, index in table.gpus.items()} | nics
    unknown: dict[str, str] = {}
    gpus: list[Gpu] = []
    for column, index in table.gpus.items():
        affinity = table.affinity(column)
        nodes = affinity.get("NUMA Affinity", "")
        memory_numa = numa_of(affinity.get("GPU NUMA ID"))
        # With a NUMA node of memory (GH200, GB200) the list also has nodes of GPUs' memory. Linux numbers the nodes with CPUs first.
        numa = numa_of(nodes) if memory_numa is None else min(cpu_list(nodes), default=None)
        if numa is None:
            unknown[f"gpus/{keys[column]}/numa"] = _why_no_numa(table, column)
        gpus.append(Gpu(keys[column], index=index, vendor="nvidia", numa=numa, memory_numa=memory_numa))
    unknown |= {f"nics/{nic}/address": "the file has no NIC Legend" for nic in nics.values() if re.fullmatch(r"NIC\d+", nic)}
    unknown["numa_nodes"] = "the matrix names only the nodes nearest to GPUs"
    if not nics:
        unknown["nics"] = "the matrix has no columns of NICs: nvidia-smi shows only RDMA devices that it can see"
    cells = {(a, b): table.cell(a, b) for a, b in permutations(table.columns, 2)}  # in both directions
    uneven = [
        f"the matrix has {word} from {keys[a]} to {keys[b]}, but {cells[b, a]} from {keys[b]} to {keys[a]}"
        for (a, b), word in cells.items()
        if a < b and word != cells[b, a] and a in table.rows and b in table.rows
    ]
    excessive = sorted({word for row in table.rows.values() for word in row if word.startswith("NV") and int(word[2:]) > _MOST_LINKS})
    doubts = [f"the matrix has {word}: no GPU has more than {_MOST_LINKS} links" for word in excessive]
    if cut := _CUT.search(text):
        doubts.append(f"nvidia-smi found {cut[1]} NICs and shows {cut[2]}: the others are missing here")
    if missing := [column for column in table.columns if column not in table.rows]:
        doubts.append(f"the matrix lacks the rows of {', '.join(missing)}: taken from the other half where it is there")
    return Machine(
        gpus=tuple(gpus),
        gpu_links=_links(table, keys),
        nics=tuple(Nic(nic, rdma=True) for nic in dict.fromkeys(nics.values())),
        paths={(keys[a], keys[b]): _OLD_WORDS.get(word, word) for (a, b), word in cells.items() if word},
        unknown=unknown,
        doubts=(*doubts, *few(uneven)),
    )


def _why_no_numa(table: SmiMatrix, column: str) -> str:
    if column not in table.rows:
        return "its row is missing"
    affinity = table.affinity(column)
    if "NUMA Affinity" not in table.affinities:
        return f"the matrix has no NUMA Affinity column; its CPUs are {affinity.get('CPU Affinity') or 'unknown'}"
    nodes = affinity.get("NUMA Affinity")
    return f"its NUMA Affinity is {printable(nodes, 40) if nodes else 'empty, as in a container'}"


def _links(table: SmiMatrix, keys: Mapping[str, str]) -> tuple[GpuLink, ...]:
    """Return NVLinks by GPU: to the switch if a row has more than a GPU can have, else to each peer; 0 if a complete row has none."""
    counts: dict[str, dict[str, int]] = {}  # 0 for another path; peers without a cell are left out
    for gpu in table.gpus:
        words = {peer: table.cell(gpu, peer) for peer in table.gpus if peer != gpu}
        counts[gpu] = {peer: int(word[2:]) if word.startswith("NV") else 0 for peer, word in words.items() if word}
    switched = any(sum(row.values()) > _MOST_LINKS for row in counts.values())
    links: list[GpuLink] = []
    for gpu, row in counts.items():
        if not any(row.values()):
            if len(row) == len(table.gpus) - 1:
                links.append(GpuLink(keys[gpu], None, 0))
        elif switched:
            links.append(GpuLink(keys[gpu], SWITCH, max(row.values())))
        else:
            links += [GpuLink(keys[gpu], keys[peer], count) for peer, count in row.items() if count]
    return tuple(links)


SMI_MATRIX = Reader(KIND, looks_like, read, lists=frozenset({"gpus"}), starts=starts)
