"""CB2811 and CB2812: what `collbench doctor` finds about the UCC of this host and the UCX below it.

Examined only where a UCC is named by COLLBENCH_UCC or found by the loader: a host without one has no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from collbench.backends.unavailable import LibraryNotFound, LibraryUnusable
from collbench.machine.doctor.finding import Finding
from collbench.plugins.libraries.ucc.library import CHOSEN, check_layers, load_ucc, ucx_modules
from collbench.units import listed


def examined_ucc(hostname: str | None, env: Mapping[str, str], root: Path = Path("/")) -> list[Finding]:
    """Return the findings about the UCC that collbench would load. `root`: the folder that holds sys."""
    try:
        check_layers(load_ucc(env))
    except LibraryUnusable as error:
        return list(unusable(hostname, error, env.get(CHOSEN)))
    return list(no_rdma(hostname, ucx_modules(), root))


def unusable(hostname: str | None, error: LibraryUnusable, chosen: str | None) -> Iterator[Finding]:
    """CB2811: a UCC is named or installed, but cannot be used."""
    if chosen or not isinstance(error.obstacle, LibraryNotFound):
        evidence = f"{CHOSEN}={chosen}" if chosen else "the libucc.so.1 that the loader finds"
        problem = f"backend ucc cannot be used on this host: {error.obstacle.cause()}"
        yield Finding("CB2811", "warning", hostname, problem, evidence, error.obstacle.remedy())


def no_rdma(hostname: str | None, modules: Path | None, root: Path) -> Iterator[Finding]:
    """CB2812: the UCX that UCC uses has no module for RDMA devices, and this host has active ones."""
    transports = sorted(file.name for file in modules.glob("libuct_*.so*")) if modules else []
    if not transports or any(name.startswith("libuct_ib") for name in transports):
        return
    active = sorted({port.parents[2].name for port in root.glob("sys/class/infiniband/*/ports/*/state") if "ACTIVE" in _text(port)})
    if active:
        problem = f"the UCX that UCC uses cannot use {listed(active)}: it has no module for RDMA, and uses TCP"
        evidence = f"{modules} has no libuct_ib.so; {', '.join(active)}: state ACTIVE in /sys/class/infiniband"
        remedy = f"use a UCX built with --with-verbs: load its module, add its folder to LD_LIBRARY_PATH, or set {CHOSEN} to another UCC"
        yield Finding("CB2812", "warning", hostname, problem, evidence, remedy)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
