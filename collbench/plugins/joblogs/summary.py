"""Summary of an NCCL or RCCL log as typed facts, for the output of `doctor --log` and its JSON."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from enum import Enum

import msgspec
from msgspec import structs

from collbench.machine.readers.nccl_facts import NcclPlugin, NetDevice, Platform, PluginRelease, PluginState, RingPaths, TopologyFile
from collbench.machine.readers.nccl_log import NcclLog
from collbench.units import listed, plural

_HCA = re.compile(r"([\w.-]{1,64}):(\d{1,3})[^/+]{0,16}/(IB|RoCE)")
_MOST_NAMES = 8
_MOST_CHOICES = 6


class LinkLayer(Enum):
    """The link layer of an RDMA port."""

    INFINIBAND = "InfiniBand"
    ROCE = "RoCE"


class GpuDirect(Enum):
    """Whether the log shows that GPUDirect RDMA is in use."""

    IN_USE = "in use"
    ONE_DIRECTION = "one direction"
    PARTLY = "partly"
    STAGED = "staged"
    DISABLED = "disabled"
    UNKNOWN = "unknown"
    NOT_APPLICABLE = "not applicable"


_GPUDIRECT_TEXT = {
    GpuDirect.IN_USE: "in use",
    GpuDirect.ONE_DIRECTION: "shown for one direction",
    GpuDirect.PARTLY: "used by a part of the connections",
    GpuDirect.STAGED: "not used: staged through the host's memory",
    GpuDirect.DISABLED: "reported as disabled",
    GpuDirect.UNKNOWN: "unknown (no RDMA connection in the log)",
    GpuDirect.NOT_APPLICABLE: "not applicable (TCP sockets)",
}


class Hca(msgspec.Struct, frozen=True):
    """An RDMA device as the library lists it. number: the library's own index."""

    number: int
    name: str
    port: int
    link_layer: LinkLayer
    sharp: bool = False


class CountedChoice(msgspec.Struct, frozen=True):
    """An algorithm and protocol that the library chose, with the number of calls."""

    collective: str | None
    algorithm: str | None
    protocol: str | None
    calls: int


class LogSummary(msgspec.Struct, frozen=True):
    """The facts of one log; None and () where the log does not have them.

    version         "2.27.3"; release as printed, "2.27.3+cuda12.9"
    network         "IB", "Socket", "Libfabric"
    hcas            of the first host that lists any; interfaces: those of TCP sockets
    ranks           of the largest communicator; ranks_at_least: the log may show only a part of them
    nvls            whether NVLink multicast is available; channels by kind {"coll": 16, "nvls": 16, "p2p": 32}
    connections     number of lines by transport
    collnet         whether connections for in-network reductions were made
    plugins         by kind, "loaded: NCCL RDMA Plugin v10" or "absent"
    provider        of libfabric, "cxi"; releases: versions of the libfabric plug-in and of libfabric
    rings           whether the rings use PXN and GPUDirect RDMA
    """

    name: str
    library: str
    version: str | None
    release: str | None
    network: str | None
    hcas: tuple[Hca, ...]
    interfaces: tuple[str, ...]
    hosts: tuple[str, ...]
    ranks: int | None
    ranks_at_least: int | None
    nodes: int | None
    local_ranks: int | None
    gpudirect: GpuDirect
    nvls: bool | None
    multi_node_nvlink: bool | None
    collnet: bool
    channels: dict[str, int]
    connections: dict[str, int]
    choices: tuple[CountedChoice, ...]
    settings: dict[str, str]
    plugins: dict[str, str]
    topology_file: str | None
    platform: str | None
    warnings: int
    provider: str | None = None
    releases: dict[str, str] = msgspec.field(default_factory=dict)
    rings: dict[str, bool] | None = None


def summarize(log: NcclLog) -> LogSummary:
    """Return the summary of a log."""
    release, job = log.release, log.job
    layers = hcas_in(log)
    ranks = job.ranks if job else log.ranks or sum(log.ranks_of_hosts.values()) or None
    plugins: dict[str, str] = {}
    for plugin in log.of_kind(NcclPlugin):
        if plugin.state is PluginState.LOADED:
            plugins[plugin.kind.value] = f"{plugin.name} (v{plugin.api})"
        elif plugin.kind.value not in plugins:
            plugins[plugin.kind.value] = plugin.state.value
    calls: Counter[tuple[str | None, str | None, str | None]] = Counter()
    for choice, count in log.choices.items():
        calls[choice.collective, choice.algorithm, choice.protocol] += count
    choices = tuple(CountedChoice(*key, count) for key, count in calls.most_common())
    return LogSummary(
        name=log.name,
        library=log.library.value,
        version=log.version,
        release=release.text if release else None,
        network=log.net,
        hcas=tuple(next(iter(layers.values()), ())),
        interfaces=log.device_names("Socket"),
        hosts=log.hosts,
        ranks=ranks,
        ranks_at_least=None if ranks else log.ranks_at_least,
        nodes=job.nodes if job else len(log.ranks_of_hosts) or None,
        local_ranks=job.local_ranks if job else None,
        gpudirect=gpudirect_of(log),
        nvls=log.nvls_available,
        multi_node_nvlink=job.multi_node_nvlink if job else None,
        collnet=log.collnet,
        channels=log.stated,
        connections=dict(sorted(log.transports.items(), key=lambda item: -item[1])),
        choices=choices,
        settings=log.settings,
        plugins=plugins,
        topology_file=next((file.path for file in log.of_kind(TopologyFile)), None),
        platform=next((platform.name for platform in log.of_kind(Platform)), None),
        warnings=len(log.warnings),
        provider=log.provider,
        releases={release.name: release.version for release in log.of_kind(PluginRelease)},
        rings=next((structs.asdict(rings) for rings in log.of_kind(RingPaths)), None),
    )


def hcas_in(log: NcclLog) -> dict[str, list[Hca]]:
    """Return the RDMA devices that the library lists with their link layer, by host."""
    sharp = {device.name for device in log.of_kind(NetDevice) if device.sharp}
    found: dict[str, list[Hca]] = {}
    if log.net != "Socket":
        for (host, number), text in log.names.items():
            for name, port, layer in _HCA.findall(text):
                kind = LinkLayer.INFINIBAND if layer == "IB" else LinkLayer.ROCE
                found.setdefault(host, []).append(Hca(number, name, int(port), kind, text in sharp))
    return found


def gpudirect_of(log: NcclLog) -> GpuDirect:
    """Return the state that the connections prove, else what the library reports."""
    if log.gdr_send or log.gdr_receive:
        if log.staged:
            return GpuDirect.PARTLY
        return GpuDirect.IN_USE if log.gdr_send and log.gdr_receive else GpuDirect.ONE_DIRECTION
    if log.staged:
        return GpuDirect.STAGED
    if log.net == "Socket":
        return GpuDirect.NOT_APPLICABLE
    return GpuDirect.DISABLED if log.gdr_refused else GpuDirect.UNKNOWN


def summary_lines(summary: LogSummary) -> Iterator[str]:
    """Yield the summary as a few lines of text."""
    release = summary.release or "version unknown"
    ranks = "ranks unknown"
    if summary.ranks or summary.ranks_at_least:
        ranks = plural(summary.ranks, "rank") if summary.ranks else f"at least {plural(summary.ranks_at_least or 0, 'rank')}"
    hosts = f"lines of {plural(len(summary.hosts), 'host')}" if summary.hosts else "nodes unknown"
    ranks += f" on {plural(summary.nodes, 'node')}" if summary.nodes else f"; {hosts}"
    warned = f" · {plural(summary.warnings, 'warning')}" if summary.warnings else ""
    yield f"{summary.name or 'log'}: {summary.library} {release} · {ranks}{warned}"
    yield f"  network: {_network(summary)} · GPUDirect RDMA: {_GPUDIRECT_TEXT[summary.gpudirect]}"
    known = {True: "available", False: "not available", None: "unknown"}[summary.nvls]
    channels = f", {plural(summary.channels['nvls'], 'channel')}" if summary.nvls and "nvls" in summary.channels else ""
    choices = [
        f"{each.collective or 'calls'} {'/'.join(filter(None, (each.algorithm, each.protocol))) or '?'} ({each.calls})"
        for each in summary.choices
    ]
    algorithms = listed(choices, _MOST_CHOICES) or "unknown (NCCL_DEBUG_SUBSYS=INIT,NET,TUNING prints them)"
    yield f"  NVLS: {known}{channels}{'; multi-node NVLink' if summary.multi_node_nvlink else ''} · algorithms: {algorithms}"
    if summary.connections:
        yield f"  connections: {listed([f'{name} ({lines})' for name, lines in summary.connections.items()], _MOST_NAMES)}"
    if summary.settings:
        yield f"  set: {listed([f'{name}={value}' for name, value in summary.settings.items()], _MOST_NAMES)}"
    plugins = [f"{kind} plug-in: {state}" for kind, state in summary.plugins.items() if state != PluginState.ABSENT.value]
    more = [*plugins, *([f"topology file: {summary.topology_file}"] if summary.topology_file else [])]
    more += [f"platform: {summary.platform}"] if summary.platform else []
    more += [f"{name} {version}" for name, version in summary.releases.items()]
    if summary.rings:
        more.append(f"rings: PXN {'on' if summary.rings['pxn'] else 'off'}, GPUDirect RDMA {'on' if summary.rings['gdr'] else 'off'}")
    if more:
        yield f"  {' · '.join(more)}"


def _network(summary: LogSummary) -> str:
    name = summary.network or ("libfabric" if summary.provider else "unknown")
    if summary.provider:
        return f"{name} (provider {summary.provider})"
    if summary.hcas:
        layers = {layer: [f"{hca.name}:{hca.port}" for hca in summary.hcas if hca.link_layer is layer] for layer in LinkLayer}
        sharp = ", with SHARP" if any(hca.sharp for hca in summary.hcas) else ""
        return f"{name} on {'; '.join(f'{listed(names, _MOST_NAMES)} ({layer.value})' for layer, names in layers.items() if names)}{sharp}"
    sockets = f" on {listed(summary.interfaces, _MOST_NAMES)}" if summary.network == "Socket" and summary.interfaces else ""
    return f"{name}{sockets}"
