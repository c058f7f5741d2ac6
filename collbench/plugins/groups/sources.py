"""The group of each host, from Slurm, a file, or the NVLink cliques of the GPUs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from collbench.errors import UsageError
from collbench.machine.readers.text import printable
from collbench.plugins.groups.topology import Levels, read_levels
from collbench.plugins.hunt.cover import host_key
from collbench.plugins.hunt.managers import run_here
from collbench.units import first_of, plural
from collbench.untrusted import dict_of, list_of, parse_json, read_file

SLURM, NVLINK, LATENCY = "slurm", "nvlink", "latency"
_MOST_BYTES = 16 << 20
_MOST_NAMED = 6
_LEAST_HOSTS = 2  # of a group whose paths are judged
# Ends of Kubernetes labels, from the smallest groups: those of NVIDIA's GPU discovery and Topograph, and the usual ones.
_LABELS = ("/gpu.clique", "/accelerator", "/block", "/leaf", "/switch", "/rack", "/spine", "/zone")


class HostGroups(msgspec.Struct, frozen=True):
    """The groups of a hunt. of_host: by host the name of its group, "" if it is in none; sentences: their origin, what is missing."""

    of_host: Mapping[str, str]
    sentences: tuple[str, ...]


def groups_of(source: str, hosts: Sequence[str], nodes: Mapping[str, str], cliques: Mapping[str, str] | None) -> HostGroups:
    """Return the groups of these hosts. Raises UsageError, one sentence, for a source that cannot be read or has none of the hosts.

    nodes: by host the scheduler's name of its node, where it is known; cliques: by host the NVLink clique of its GPUs, None: not asked for.
    """
    if source == NVLINK:
        if cliques is None:  # of a plan
            return HostGroups(dict.fromkeys(hosts, ""), ("the NVLink cliques are read when the ranks start",))
        if not any(cliques.values()):
            raise UsageError("--groups nvlink: no host of this job has GPUs of one NVLink clique: use slurm, latency or a file")
        return _chosen([("NVLink clique", dict(cliques))], "the GPUs", hosts, {})
    if source == SLURM:
        outcome = run_here(["scontrol", "show", "topology"], os.environ)
        if outcome.code != 0:
            raise UsageError(f"--groups slurm: scontrol show topology failed ({outcome.why}): use --groups FILE")
        return _read(outcome.out, "scontrol show topology", hosts, nodes)
    name = f"groups file '{printable(source)}'"
    try:
        text = read_file(Path(source), _MOST_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{name}: cannot be read ({error.strerror or error}): use slurm, nvlink, latency or a file") from error
    return _read(text, name, hosts, nodes)


def _read(text: str, name: str, hosts: Sequence[str], nodes: Mapping[str, str]) -> HostGroups:
    try:
        levels = _labels(text) if text.lstrip().startswith("{") else read_levels(text)
        return _chosen(levels, name, hosts, nodes)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: {error}") from error


def _labels(text: str) -> Levels:
    """Return the groups of `kubectl get nodes -o json` by its labels. Raises ValueError."""
    items = list_of(dict_of(parse_json(text)).get("items"), dict)
    by_label: dict[str, dict[str, str]] = {}
    for item in items:
        metadata = dict_of(item.get("metadata"))
        for label, value in dict_of(metadata.get("labels")).items():
            if label.endswith(_LABELS) and isinstance(value, str) and value and isinstance(metadata.get("name"), str):
                by_label.setdefault(label, {})[metadata["name"]] = value
    if not by_label:
        raise ValueError(f"no node has a label that ends with {', '.join(_LABELS)}: save `kubectl get nodes -o json`, or label the nodes")
    order = sorted(by_label, key=lambda label: next(place for place, end in enumerate(_LABELS) if label.endswith(end)))
    return [(f"label {printable(label)}", by_label[label]) for label in order]


def _chosen(levels: Levels, name: str, hosts: Sequence[str], nodes: Mapping[str, str]) -> HostGroups:
    """Return the groups of the finest level at which two groups have two hosts each; else of the finest one."""
    groups_by_level = []
    for kind, owners in levels:
        by_key: dict[str, str] = {}
        for host, group in owners.items():
            known_group = by_key.setdefault(host_key(host), group)
            if known_group != group:
                raise ValueError(f"{printable(host)} is in {printable(known_group)} and in {printable(group)}: keep one of them")
        groups_by_level.append((kind, {host: by_key.get(host_key(nodes.get(host) or host), "") for host in hosts}))
    kind, of_host = next((level for level in groups_by_level if len(_large(level[1])) > 1), groups_by_level[0])
    missing = [host for host, group in of_host.items() if not group]
    if len(missing) == len(of_host):
        hosts_of_file = _listed(list(levels[0][1])) or "none"
        raise UsageError(
            f"{name} has none of the hosts of this job ({_listed(missing)}); its hosts: {hosts_of_file}. Use the file of this cluster"
        )
    sizes = Counter(group for group in of_host.values() if group)
    members = [f"{printable(group)} {count}" for group, count in sorted(sizes.items())]
    sentences = [f"{plural(len(sizes), 'group')} by {kind} from {name}, with their hosts: {_listed(members)}"]
    if missing:
        sentences.append(f"{_listed(missing)}: in no group of {name}, so their pairs judge no path between groups")
    if len(_large(of_host)) < _LEAST_HOSTS:
        sentences.append("paths between groups are not judged: that needs two groups of two hosts")
    return HostGroups(of_host, tuple(sentences))


def _large(of_host: Mapping[str, str]) -> list[str]:
    sizes = Counter(group for group in of_host.values() if group)
    return [group for group, count in sizes.items() if count >= _LEAST_HOSTS]


def _listed(names: Sequence[str]) -> str:
    return first_of([printable(name) for name in names], _MOST_NAMED)
