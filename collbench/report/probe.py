"""What `collbench probe` prints: a tree per machine, the matrix of distances, or one JSON document."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from collbench.errors import UsageError
from collbench.machine.distance import Distances, capability
from collbench.machine.doctor.finding import SEVERITIES, Finding
from collbench.machine.model import Machine
from collbench.report.probe_cluster import cluster_lines
from collbench.report.probe_matrix import MOST_PARTS, matrix_lines
from collbench.report.probe_tree import tree_lines
from collbench.report.probe_wrap import width_of, wrapped
from collbench.report.screen import PlainScreen, wants_color
from collbench.report.table import Line

FORMATS = ("table", "matrix", "json")
SCHEMA = 1


def probe_text(
    machines: Sequence[Machine],
    differences: Sequence[str],
    format: str,
    stream: TextIO,
    color: str = "auto",
    *,
    findings: Sequence[Finding] | None = None,
) -> None:
    """Prints machines in one of FORMATS on `stream`; `color` is auto, always or never, `findings` the doctor's where they are known.

    Nothing is cut: on a terminal that is narrower a line goes on below its beginning, but for matrices. Raises UsageError
    for an unknown format or colour.
    """
    if format not in FORMATS:
        raise UsageError(f"--format '{format}' is unknown: choose from {', '.join(FORMATS)}")
    screen = PlainScreen(stream, stream, wants_color(stream, color))
    found = _examined(machines) if findings is None and format != "matrix" else list(findings or ())
    for line in wrapped(_lines(machines, differences, format, found), width_of(stream) if format == "table" else None):
        screen.data(line)


def document(machines: Sequence[Machine], differences: Sequence[str], findings: Sequence[Finding]) -> dict[str, Any]:
    """The JSON document; `topology.snapshot.machines_of` reads it back. What is unknown is null, as is what is no finite number.

    Findings between machines stand with the first one.
    """
    names = {machine.hostname for machine in machines}
    entries = []
    for place, machine in enumerate(machines):
        between = [each for each in findings if each.hostname not in names] if not place else []
        entries.append(_machine(machine, [*(each for each in findings if each.hostname == machine.hostname), *between]))
    plain: dict[str, Any] = _finite({"schema": SCHEMA, "machines": entries, "differences": list(differences)})
    return plain


def _lines(machines: Sequence[Machine], differences: Sequence[str], format: str, findings: Sequence[Finding]) -> Iterator[Line]:
    if format == "json":
        yield Line(json.dumps(document(machines, differences, findings), indent=2, allow_nan=False))
        return
    matrix = format == "matrix"
    if len(machines) > 1:
        yield from cluster_lines(machines, differences, matrix)
    else:
        yield from (line for machine in machines for line in (matrix_lines(machine) if matrix else tree_lines(machine)))
    if not matrix:
        yield from (Line(""), _counts(findings))


def _counts(findings: Sequence[Finding]) -> Line:
    counts = Counter(each.severity for each in findings)
    words = [f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]]
    return Line(f"findings: {', '.join(words)}; `collbench doctor` tells them" if words else "findings: none", "head")


def _examined(machines: Sequence[Machine]) -> list[Finding]:
    from collbench.machine.doctor.examine import examine

    return examine(machines)


def _machine(machine: Machine, findings: Sequence[Finding]) -> dict[str, Any]:
    from collbench.machine.snapshot import to_json

    system = machine.system
    cpus = {"model": system.cpu_model, "vendor": system.cpu_vendor, "architecture": system.architecture, "sockets": system.sockets,
            "cores": system.cores, "threads": system.threads}  # fmt: skip
    return {**to_json(machine), "cpus": cpus, "links": [*_links(machine)], "findings": [_finding(each) for each in findings]}


def _finding(each: Finding) -> dict[str, Any]:
    return {"code": each.code, "severity": each.severity, "what": each.what, "evidence": each.evidence, "remedy": each.remedy}


def _links(machine: Machine) -> Iterator[dict[str, Any]]:
    """PCIe links, GPU links, and between GPUs and NICs (at most 128 parts in all) the path with the state of GPUDirect RDMA."""
    for device in machine.pci:
        now = {"speed_gt_per_s": device.link.speed_gt_per_s, "width": device.link.width}
        most = {"max_speed_gt_per_s": device.link.max_speed_gt_per_s, "max_width": device.link.max_width}
        yield {"kind": "pcie", "from": device.address, "to": device.parent, **now, **most}
    for link in machine.gpu_links:
        yield {"kind": link.kind, "from": link.a, "to": link.b, "count": link.count, "bytes_per_s": link.bytes_per_s}
    distances = Distances(machine)
    gpus = machine.gpus[:MOST_PARTS]
    nics = [nic for nic in machine.nics if nic.virtual is None][: MOST_PARTS - len(gpus)]
    for gpu, nic in ((gpu, nic) for gpu in gpus for nic in nics):
        state = capability(machine, gpu, nic, distances=distances)
        path = distances.path(gpu.key, nic.key)
        yield {"kind": "gpudirect", "from": gpu.key, "to": nic.key, "path": path, "state": state.state, "why": state.why}


def _finite(value: Any) -> Any:
    """JSON has no infinities: they are unknown."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
