"""`nvidia-smi topo -m`, with `topo -p2p` below it or alone: paths between GPUs and NICs, NVLinks counted, peer access.

Words: docs.nvidia.com/deploy/nvidia-smi ("topo"), and the legend that the tool prints. `rocm-smi --showtopo` is read by `rocm_smi`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from collbench.machine.model import SWITCH, Gpu, GpuLink, Machine, Nic
from collbench.machine.readers import rocm_smi
from collbench.machine.readers.cpu_sets import cpu_list
from collbench.machine.readers.doubts import few
from collbench.machine.readers.smi_table import Table, header, legend, tables
from collbench.machine.readers.text import HEAD, Reader, Unreadable, numa_of, printable

KIND = "nvidia-smi topo -m"
_OLD_WORDS = {"SOC": "SYS", "PSB": "PIX"}  # of nvidia-smi before CUDA 9, and for two GPUs of one board
_MOST_LINKS = 18  # of one GPU, generations 4 and 5; more in a row of direct links cannot be
_CUT = re.compile(r"(\d{1,6}) NICs found in the topology, only displaying (\d{1,6})")
_CPUS = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def looks_like(text: str, name: str) -> bool:
    """A heading of GPU columns with a row under it, or the tables of rocm-smi."""
    start = text[:HEAD]
    if rocm_smi.looks_like(start, name):
        return True
    return "GPU0" in start and any(header(line) for line in re.sub(r"\x1b?\[[0-9;]*m", "", start).splitlines())


def starts(line: str) -> bool:
    """Whether the line is the heading of a matrix, or of a table of rocm-smi."""
    return bool(header(re.sub(r"\x1b?\[[0-9;]*m", "", line))) or rocm_smi.starts(line)


def read(text: str, name: str) -> Machine:
    """The machine as its matrices tell it. GPU keys are "gpu0"; NICs have the legend's names, else the columns'.

    Raises Unreadable when no table is there, when two machines are, or when a row's cells do not fit its heading.
    """
    if rocm_smi.looks_like(text[:HEAD], name):
        return rocm_smi.read(text, name)
    found = tables(text, name)
    matrices = [table for table in found if not table.is_access]
    if not found:
        raise Unreadable(f"{printable(name)} has no matrix of GPUs: save the output of `nvidia-smi topo -m` into it")
    if len(matrices) > 1:
        raise Unreadable(f"{printable(name)} has {len(matrices)} topology matrices: give the output for one machine")
    access = [table for table in found if table.is_access]
    source = f"{KIND} {printable(name)}"
    peer_access, doubts = _peer_access(access)
    if not matrices:
        gpus = tuple(Gpu(key, index=index, vendor="nvidia") for key, index in _gpu_keys(access[0]).values())
        return Machine(sources=(source,), gpus=gpus, peer_access=peer_access, doubts=few(doubts))
    return _machine(matrices[0], text, source, peer_access, doubts)


def _names(text: str) -> dict[str, str]:
    """The NICs' names by column; {} when the legend gives two columns one name."""
    names = legend(text)
    return names if len(set(names.values())) == len(names) else {}


def _machine(table: Table, text: str, source: str, access: Mapping[tuple[str, str], str], doubts: Sequence[str]) -> Machine:
    gpus, names = _gpu_keys(table), _names(text)
    nics = {column: names.get(column, column) for column in table.columns if column not in gpus}
    keys = {column: key for column, (key, _) in gpus.items()} | nics
    numa, unknown = _numa(table)
    own = {gpu: numa_of(_affinity(table, gpu).get("GPU NUMA ID")) for gpu in gpus}
    unknown |= {f"nics/{nic}/address": "the file has no NIC Legend" for nic in nics.values() if re.fullmatch(r"NIC\d+", nic)}
    unknown["numa_nodes"] = "the matrix names only the nodes nearest to GPUs"
    if not nics:
        unknown["nics"] = "the matrix has no columns of NICs: nvidia-smi shows only RDMA devices that it can see"
    paths, uneven = _paths(table, keys)
    missing = [column for column in table.columns if column not in table.rows]
    lost = [f"the matrix has {links}: no GPU has more than {_MOST_LINKS} links" for links in _too_many(table)]
    lost += _not_shown(text)
    lost += [f"the matrix lacks the rows of {', '.join(missing)}: taken from the other half where it is there"] if missing else []
    return Machine(
        sources=(source,),
        gpus=tuple(
            Gpu(key, index=index, vendor="nvidia", numa=numa.get(column), memory_numa=own[column]) for column, (key, index) in gpus.items()
        ),
        gpu_links=_links(table, keys),
        nics=tuple(Nic(nic, rdma=True) for nic in dict.fromkeys(nics.values())),
        paths=paths,
        peer_access=access,
        unknown=unknown,
        doubts=(*few(doubts), *lost, *few(uneven)),
    )


def _not_shown(text: str) -> list[str]:
    """A doubt where nvidia-smi says that it found more NICs than it has columns for."""
    cut = _CUT.search(text)
    return [f"nvidia-smi found {cut[1]} NICs and shows {cut[2]}: the others are missing here"] if cut else []


def _gpu_keys(table: Table) -> dict[str, tuple[str, int]]:
    indexes = {column: int(column.removeprefix("GPU")) for column in table.gpus}
    return {column: (f"gpu{index}", index) for column, index in indexes.items()}


def _paths(table: Table, keys: Mapping[str, str]) -> tuple[dict[tuple[str, str], str], list[str]]:
    """What stands between two parts, both directions; doubts where the two halves differ."""
    paths: dict[tuple[str, str], str] = {}
    doubts: list[str] = []
    for a in table.columns:
        for b in table.columns:
            word = None if a == b else table.cell(a, b)
            back = None if a == b else table.cell(b, a)
            if word:
                paths[keys[a], keys[b]] = _OLD_WORDS.get(word, word)
            if word != back and a in table.rows and b in table.rows and a < b:
                doubts.append(f"the matrix says {word} from {keys[a]} to {keys[b]} and {back} back")
    return paths, doubts


def _links(table: Table, keys: Mapping[str, str]) -> tuple[GpuLink, ...]:
    """NVLinks by GPU: to the switch when a row adds up to more than a GPU can have, else to each peer; 0 where a full row shows none."""
    counts = {gpu: _counts(table, gpu) for gpu in table.gpus}
    switched = any(sum(row.values()) > _MOST_LINKS for row in counts.values())
    links: list[GpuLink] = []
    for gpu, row in counts.items():
        if not any(row.values()):
            links += [GpuLink(keys[gpu], None, 0)] if len(row) == len(table.gpus) - 1 else []
        elif switched:
            links.append(GpuLink(keys[gpu], SWITCH, max(row.values())))
        else:
            links += [GpuLink(keys[gpu], keys[peer], count) for peer, count in row.items() if count]
    return tuple(links)


def _too_many(table: Table) -> list[str]:
    words = {word for row in table.rows.values() for word in row if word.startswith("NV")}
    return sorted(word for word in words if int(word[2:]) > _MOST_LINKS)


def _counts(table: Table, gpu: str) -> dict[str, int]:
    """NVLinks of a GPU by peer, 0 where the path is another; peers without any cell are left out."""
    words = {peer: table.cell(gpu, peer) for peer in table.gpus if peer != gpu}
    return {peer: int(word[2:]) if word.startswith("NV") else 0 for peer, word in words.items() if word}


def _numa(table: Table) -> tuple[dict[str, int], dict[str, str]]:
    """NUMA nodes by GPU column, and for each GPU without one the reason."""
    numa: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for gpu, (key, _) in _gpu_keys(table).items():
        affinity = _affinity(table, gpu)
        node = _node(affinity)
        if node is None:
            unknown[f"gpus/{key}/numa"] = _why(table, gpu, affinity)
        else:
            numa[gpu] = node
    return numa, unknown


def _node(affinity: Mapping[str, str]) -> int | None:
    """The NUMA node of the CPUs near a GPU.

    Beside a GPU whose memory is a NUMA node (GH200, GB200) the list names further nodes, of GPUs' memory and its partitions: Linux counts
    those with CPUs first.
    """
    told = affinity.get("NUMA Affinity", "")
    coherent = numa_of(affinity.get("GPU NUMA ID")) is not None
    return min(cpu_list(told), default=None) if coherent else numa_of(told)


def _affinity(table: Table, gpu: str) -> dict[str, str]:
    """The last columns of a GPU's row by their headings; {} when white space leaves open which is which."""
    rest = table.rest.get(gpu, "")
    parts = [part.strip() for part in rest.split("\t")[1:]] if "\t" in rest else rest.split()
    parts = [part for part in parts if part] if len(parts) > len(table.affinities) else parts  # drivers pad with a second tab
    complete = len(parts) >= len(table.affinities)
    return dict(zip(table.affinities, parts, strict=False)) if complete or (parts and _CPUS.fullmatch(parts[0])) else {}


def _why(table: Table, gpu: str, affinity: Mapping[str, str]) -> str:
    if gpu not in table.rows:
        return "its row is missing"
    if "NUMA Affinity" not in table.affinities:
        cpus = affinity.get("CPU Affinity", "")
        return f"the matrix has no NUMA Affinity column; its CPUs are {cpus or 'not told'}"
    told = affinity.get("NUMA Affinity", "")
    return f"its NUMA Affinity is {printable(told, 40)}" if told else "its NUMA Affinity is empty, as in a container"


def _peer_access(found: Sequence[Table]) -> tuple[dict[tuple[str, str], str], tuple[str, ...]]:
    """Peer access of the first matrix that tells it for a pair; a doubt where later ones (other kinds of access) differ."""
    access: dict[tuple[str, str], str] = {}
    differ: dict[str, None] = {}
    for table in found:
        keys = {column: key for column, (key, _) in _gpu_keys(table).items()}
        for a, b in ((a, b) for a in table.gpus for b in table.gpus if a != b):
            word = table.cell(a, b)
            if word and access.setdefault((keys[a], keys[b]), word) != word:
                differ[f"the peer-to-peer matrices differ from {keys[a]} to {keys[b]}: {access[keys[a], keys[b]]}, then {word}"] = None
    return access, tuple(differ)


SMI_MATRIX = Reader(KIND, looks_like, read, lists=frozenset({"gpus"}), starts=starts)
