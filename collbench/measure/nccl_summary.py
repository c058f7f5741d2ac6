"""What the logs of a job's ranks say together, ready for a row's evidence and run.json, and in one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from collbench.machine.readers.nccl_log import NcclLog
from collbench.machine.readers.nccl_words import GDR

_MOST_WARNINGS = 20
_MOST_CHOICES = 256
_DEVICE = re.compile(r"^NET/([^/]+)/(\d{1,4})(.*)$")
_KEYS = ("collective", "bytes", "algorithm", "protocol", "channels")


def summary(log: NcclLog) -> dict[str, Any]:
    """One process's log, JSON-ready.

    transports  by name how many connections; channels: by transport the channels that use it
    nics        by NCCL's words the device's name: {"NET/IB/0": "mlx5_0:1/IB"}
    gdr         {"send", "receive"}: a line proves that direction; "staged": connections of RDMA without it; "refused": HCAs
    choices     see `choices_of`; stated: {"coll": 16}: how many channels NCCL says it has
    """
    return {
        "version": log.version, "net": log.net, "transports": dict(log.transports), "channels": _channels(log), "nics": _nics(log),
        "gdr": {"send": log.gdr_send, "receive": log.gdr_receive, "staged": log.staged, "refused": list(log.gdr_refused)},
        "stated": dict(log.stated), "choices": choices_of(log), "warnings": list(log.warnings[:_MOST_WARNINGS]),
    }  # fmt: skip


def choices_of(log: NcclLog) -> list[dict[str, Any]]:
    """[{"collective", "bytes", "algorithm", "protocol", "channels", "calls"}]; None where NCCL does not tell."""
    return [
        dict(zip(_KEYS, (collective, size, choice.algorithm, choice.protocol, choice.channels), strict=True)) | {"calls": calls}
        for (collective, size), choices in log.choices.items()
        for choice, calls in choices.items()
    ][:_MOST_CHOICES]


def together(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of all processes as one: as in `summary`, and

    processes   how many, told: how many of them had a log; why the first of the others had none
    hosts_without_gdr   with connections between hosts that do not use GPUDirect RDMA
    nics        by NCCL's words all names: hosts may number theirs differently
    sentence    "NET/IB/0/GDRDMA on 16 of 16 channels"
    """
    told = [each for each in facts if "transports" in each]
    why = next((each["why"] for each in facts if each.get("why")), None)
    channels = _united(told, "channels")
    return {
        "processes": len(facts), "told": len(told), "why": why, "versions": _all(told, "version"), "nets": _all(told, "net"),
        "transports": _summed(each["transports"] for each in told), "channels": channels, "nics": _united(told, "nics"),
        "gdr": _gdr(told), "hosts_without_gdr": sorted({each["host"] for each in told if _undirect(each["transports"])}),
        "stated": {kind: max(each["stated"].get(kind, 0) for each in told) for kind in _kinds(told)}, "choices": _merged(told),
        "warnings": list(dict.fromkeys(text for each in told for text in each["warnings"]))[:_MOST_WARNINGS],
        "sentence": sentence(channels) if channels else why or "NCCL's log names no connection",
    }  # fmt: skip


def sentence(channels: Mapping[str, Sequence[int]]) -> str:
    """ "NET/IB/0,1/GDRDMA on 16 of 16 channels, P2P/CUMEM on 16": the network first, devices that do the same as one."""
    every = set().union(*map(set, channels.values()))
    found: dict[tuple[str, str], tuple[list[int], set[int]]] = {}
    for transport, numbers in channels.items():
        match = _DEVICE.match(transport)
        kind = (f"NET/{match[1]}/", match[3]) if match else (transport, "")
        devices, used = found.setdefault(kind, ([], set()))
        devices += [int(match[2])] if match else []
        used.update(numbers)
    ordered = sorted(found.items(), key=lambda item: (not item[0][0].startswith("NET"), -len(item[1][1]), item[0]))
    parts = [f"{kind}{','.join(map(str, sorted(devices)))}{rest} on {len(used)}" for (kind, rest), (devices, used) in ordered]
    return ", ".join([f"{parts[0]} of {len(every)} channel{'s' if len(every) != 1 else ''}", *parts[1:]])


def _channels(log: NcclLog) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for _, each in log.channels:
        if each.channel is not None:
            found.setdefault(each.transport, set()).add(each.channel)
    return {transport: sorted(numbers) for transport, numbers in found.items()}


def _nics(log: NcclLog) -> dict[str, str]:
    """A process is on one host, so that a number is one device."""
    names = {number: name for (_, number), name in log.names.items()}
    used = (_DEVICE.match(transport) for transport in log.transports)
    return {f"NET/{match[1]}/{match[2]}": names[int(match[2])] for match in used if match and int(match[2]) in names}


def _undirect(transports: Mapping[str, int]) -> bool:
    return any(name.startswith("NET/") and not name.endswith(GDR) for name in transports)


def _gdr(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parts = [each["gdr"] for each in told]
    return {
        "send": any(part["send"] for part in parts), "receive": any(part["receive"] for part in parts),
        "staged": sum(part["staged"] for part in parts), "refused": sorted({name for part in parts for name in part["refused"]}),
    }  # fmt: skip


def _merged(told: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Equal choices once, with the calls of all processes."""
    calls: Counter[tuple[Any, ...]] = Counter()
    for each in told:
        for choice in each["choices"]:
            calls[tuple(choice[name] for name in _KEYS)] += choice["calls"]
    ordered = sorted(calls.items(), key=lambda item: (str(item[0][0] or ""), item[0][1], -item[1]))
    return [dict(zip(_KEYS, key, strict=True)) | {"calls": count} for key, count in ordered[:_MOST_CHOICES]]


def _united(told: Sequence[Mapping[str, Any]], name: str) -> dict[str, list[Any]]:
    found: dict[str, set[Any]] = {}
    for each in told:
        for key, value in each[name].items():
            found.setdefault(key, set()).update(value if isinstance(value, list) else [value])
    return {key: sorted(values) for key, values in sorted(found.items())}


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total.most_common())


def _all(told: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    return sorted({each[name] for each in told if each[name]})


def _kinds(told: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({kind for each in told for kind in each["stated"]})
