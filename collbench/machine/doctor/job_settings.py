"""CB2804 to CB2806: how jobs of this host are set up: NCCL's environment and files, the GID of RoCE, and Slurm's topology.

Examined on rank 0's host alone, beside the software (`software`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collbench.machine.doctor.finding import Finding, listed
from collbench.machine.doctor.log_startup import FORCED, FORCED_REMEDY

_PATIENCE_S: Final = 4.0
_MOST_BYTES: Final = 1 << 16
_ROCE_V2: Final = "RoCE v2"
_TOPOLOGY = re.compile(r"^\s*TopologyPlugin\s*=\s*(\S+)", re.MULTILINE)
_NO_TOPOLOGY = ("topology/default", "topology/flat", "topology/none")


@dataclass(frozen=True, slots=True)
class ConfiguredValue:
    """The value of a variable, and where it is set: "the environment", "/etc/nccl.conf"."""

    value: str
    source: str


def examined(hostname: str | None, env: Mapping[str, str], root: Path = Path("/")) -> list[Finding]:
    """What the settings of jobs on this host lack. `root` holds etc and sys."""
    configured = nccl_variables(env, root)
    return [*forced_choice(hostname, configured), *wrong_gid(hostname, configured, root), *no_topology(hostname, env)]


def nccl_variables(env: Mapping[str, str], root: Path = Path("/")) -> dict[str, ConfiguredValue]:
    """The variables of NCCL as it reads them: the environment goes before ~/.nccl.conf, and that before /etc/nccl.conf."""
    home = env.get("HOME")
    own = Path(env["NCCL_CONF_FILE"]) if env.get("NCCL_CONF_FILE") else Path(home) / ".nccl.conf" if home else None
    found: dict[str, ConfiguredValue] = {}
    for file, name in ((root / "etc/nccl.conf", "/etc/nccl.conf"), (own, str(own))):
        found |= {key: ConfiguredValue(value, name) for key, value in _assignments(file)} if file else {}
    return found | {name: ConfiguredValue(value, "the environment") for name, value in env.items() if name.startswith("NCCL_")}


def forced_choice(hostname: str | None, configured: Mapping[str, ConfiguredValue]) -> Iterator[Finding]:
    """CB2804: algorithm, protocol or channels are set by hand here."""
    found = {name: configured[name] for name in FORCED if name in configured}
    if found:
        evidence = listed([f"{name}={each.value} in {each.source}" for name, each in found.items()])
        what = f"{listed(list(found))} {'is' if len(found) == 1 else 'are'} set: NCCL cannot choose by message size"
        yield Finding("CB2804", "warning", hostname, what, evidence, FORCED_REMEDY.format(names=listed(list(found))))


def wrong_gid(hostname: str | None, configured: Mapping[str, ConfiguredValue], root: Path) -> Iterator[Finding]:
    """CB2805: NCCL_IB_GID_INDEX names no RoCE v2 address on ports that speak RoCE."""
    given = configured.get("NCCL_IB_GID_INDEX")
    if given is None or not given.value.strip().isdigit():
        return
    index = int(given.value)
    wrong = {name: kinds.get(index, "empty") for name, kinds in _gid_types(root).items() if kinds.get(index) != _ROCE_V2}
    if wrong:
        types = sorted(set(wrong.values()))
        yield Finding(
            "CB2805",
            "warning",
            hostname,
            f"NCCL_IB_GID_INDEX={index} does not name a RoCE v2 address of {listed(list(wrong))}",
            f"set in {given.source}; index {index} is {listed(types)} in /sys/class/infiniband/*/ports/*/gid_attrs/types",
            "set the index of the RoCE v2 GID with the IPv4 address (`show_gids`), or remove the variable with NCCL 2.21 or later",
        )


def no_topology(hostname: str | None, env: Mapping[str, str]) -> Iterator[Finding]:
    """CB2806: Slurm places jobs without knowing the switches. Where scontrol is missing or does not answer, nothing is said."""
    plugin = _slurm_topology(env)
    if plugin in _NO_TOPOLOGY:
        yield Finding(
            "CB2806",
            "note",
            hostname,
            "Slurm has no topology plug-in: it places jobs as if all nodes were on one switch",
            f"scontrol show config: TopologyPlugin = {plugin}",
            "on a cluster with several leaf switches: TopologyPlugin=topology/tree with a topology.conf (racks of NVLink: topology/block)",
        )


def _assignments(file: Path) -> Iterator[tuple[str, str]]:
    """NAME=VALUE of each line, as NCCL reads its files; nothing where the file cannot be read."""
    try:
        with file.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name.strip(), value.strip()


def _gid_types(root: Path) -> dict[str, dict[int, str]]:
    """By device the types of the GIDs of its RoCE ports by index; empty entries cannot be read, and are left out."""
    found: dict[str, dict[int, str]] = {}
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        if _line(port / "link_layer") == "Ethernet":
            types = {int(file.name): _line(file) for file in (port / "gid_attrs/types").glob("*") if file.name.isdigit()}
            known = {index: kind for index, kind in types.items() if kind}
            if known:
                found[port.parent.parent.name] = known
    return found


def _line(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _slurm_topology(env: Mapping[str, str]) -> str | None:
    scontrol = shutil.which("scontrol", path=env.get("PATH"))
    if scontrol is None:
        return None
    try:
        done = subprocess.run(
            [scontrol, "show", "config"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False, env=dict(env)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _TOPOLOGY.search(done.stdout) if done.returncode == 0 else None
    return match[1] if match else None
