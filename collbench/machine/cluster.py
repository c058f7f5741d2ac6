"""Differences between the nodes of a cluster: which nodes differ from the majority, and in which fact."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from collbench.machine.model import Machine
from collbench.machine.readers.text import printable, several

_MOST_VALUES = 8  # values of one fact in one sentence
_MOST_NAMED = 6  # groups of host names in one place
_MEMORY_TOLERANCE = 0.04  # firmware and kernels reserve different shares of equal memory
_LONGEST = 4000  # characters of a sentence
_BETWEEN_GROUPS = re.compile(r",(?![^\[]*\])")  # a comma outside of brackets


def differences(machines: Sequence[Machine]) -> list[str]:
    """Return one sentence per fact in which nodes differ, with the minority's names: "node07 has 7 GPUs, the other 31 have 8".

    A fact that is unknown for a node is not a difference. Values that are equally frequent are all listed with their nodes.
    Takes linear time in the number of nodes.
    """
    names = [printable(machine.hostname or "") or f"machine {place}" for place, machine in enumerate(machines, 1)]
    columns: dict[str, dict[str, list[str]]] = {}
    memory = sorted(machine.system.memory_bytes for machine in machines if machine.system.memory_bytes)
    common = memory[len(memory) // 2] if memory else 0
    for name, machine in zip(names, machines, strict=True):
        for fact, value in _facts(machine, common).items():
            columns.setdefault(fact, {}).setdefault(value, []).append(name)
    return [printable(_sentence(nodes), _LONGEST) for nodes in columns.values() if len(nodes) > 1]


def _facts(machine: Machine, common_memory: int) -> dict[str, str]:
    """Return the facts that nodes of one cluster should share, by name. Each text completes the sentence "node1 has …"."""
    size = machine.system.memory_bytes
    is_common = size and abs(size - common_memory) <= _MEMORY_TOLERANCE * common_memory
    facts: dict[str, str] = {}
    if size:
        shown_size = common_memory if is_common else size
        facts["memory"] = f"{shown_size / 2**30:.0f} GiB of memory"
    facts["gpus"] = _counted(machine, "gpus", len(machine.gpus), "GPU")
    facts["gpu model"] = _listed("GPUs' model", (gpu.model for gpu in machine.gpus))
    sizes = (f"{gpu.memory_bytes / 2**30:.0f} GiB" if gpu.memory_bytes else None for gpu in machine.gpus)
    facts["gpu memory"] = _listed("GPUs' memory", sizes)
    system = machine.system
    for label, value in (
        ("kernel", system.kernel),
        ("GPU driver", system.driver),
        ("processor", system.cpu_model),
        ("IOMMU", system.iommu),
        ("peer memory", None if system.peer_memory is None else ", ".join(system.peer_memory) or "none"),
        ("virtualization", "none" if system.virtualization == "" else system.virtualization),
    ):
        facts[label] = f"{label} {value}" if value else ""
    facts["threads"] = _number(system.threads, "CPU thread") if system.threads else ""
    facts["NUMA"] = _number(len(machine.numa_nodes), "NUMA node") if machine.numa_nodes else ""
    facts["links"] = _links(machine)
    facts.update((fact, text) for fact, text in _nics(machine) if text)
    return {fact: text for fact, text in facts.items() if text}


def _links(machine: Machine) -> str:
    """Return the NVLinks or xGMI links: one number for all GPUs, or those of each where they differ."""
    kind = "xGMI" if any(link.kind == "xgmi" for link in machine.gpu_links) else "NVLink"
    by_count: dict[int, list[str]] = {}
    for gpu in machine.gpus:
        count = machine.links_of(gpu.key)
        if count is not None:
            by_count.setdefault(count, []).append(str(gpu.index) if gpu.index is not None else gpu.key)
    if len(by_count) == 1:
        return f"{_number(next(iter(by_count)), kind)} per GPU"
    fewest_first = sorted(by_count.items(), key=lambda item: len(item[1]))
    return ", ".join(f"{_number(count, kind)} on GPU {', '.join(gpus)}" for count, gpus in fewest_first)


def _nics(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield the facts of physical NICs: their number, firmware, and the state and rate of each port by name."""
    nics = [nic for nic in machine.nics if nic.virtual is None]
    yield "rdma", _counted(machine, "nics", sum(nic.rdma for nic in nics), "RDMA device")
    yield "nics", _counted(machine, "nics", len(nics), "NIC")
    yield "firmware", _listed("NIC firmware", (f"{nic.firmware} ({nic.model})" if nic.model else nic.firmware for nic in nics))
    for nic in machine.nics:
        for port in nic.ports:
            name = nic.name if len(nic.ports) == 1 else f"{nic.name} port {port.number}"
            rate = f"at {port.rate_bits_per_s / 1e9:g} Gb/s" if port.rate_bits_per_s else None
            shaped = f"shaped to {port.shaped_bits_per_s / 1e9:g} Gb/s" if port.shaped_bits_per_s else None
            for label, value in (("state", port.state), ("rate", rate), ("shape", shaped), ("layer", port.link_layer)):
                yield f"{name} {label}", f"{name} {value}" if value else ""
            yield f"{name} mtu", f"{name} with MTU {port.mtu_bytes}" if port.mtu_bytes else ""


def _counted(machine: Machine, path: str, count: int, noun: str) -> str:
    """Return the count as text. A machine that cannot detect such parts differs from one that has some."""
    return f"no {noun}s that it can detect" if not count and path in machine.unknown else _number(count, noun)


def _number(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _listed(noun: str, values: Iterable[str | None]) -> str:
    different = sorted({value for value in values if value})
    return f"{noun} {', '.join(different)}" if different else ""


def _sentence(nodes: Mapping[str, Sequence[str]]) -> str:
    """Return the sentence for one fact: small groups first, then the majority. Without a majority every group is listed with its names."""
    *minorities, (common, majority) = sorted(nodes.items(), key=lambda item: len(item[1]))
    parts = [f"{folded(names)} {_have(names)} {value}" for value, names in minorities[:_MOST_VALUES]]
    omitted = minorities[_MOST_VALUES:]
    if omitted:
        parts.append(f"{_number(sum(len(names) for _, names in omitted), 'node')} in {len(omitted)} other ways")
    if len(majority) > max(1, len(minorities[-1][1])):
        parts.append(f"the other {len(majority)} have {common}")
    else:
        parts.append(f"{folded(majority)} {_have(majority)} {common}")
    return ", ".join(parts)


def _have(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def folded(names: Sequence[str]) -> str:
    """Return host names as a Slurm host list, "node[03,07-09]", shortened to the first groups and the number of the others."""
    from hostlist import collect_hostlist

    try:
        host_list: str = collect_hostlist(list(names))
    except Exception:  # names with brackets or other characters that a host list cannot have
        host_list = ",".join(names)
    return several(_BETWEEN_GROUPS.split(host_list), _MOST_NAMED)
