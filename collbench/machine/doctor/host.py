"""CB24xx, the host: shared memory, NUMA nodes that nobody knows; and what a source says that should not be relied on."""

from __future__ import annotations

from collections.abc import Iterator

from collbench.machine.doctor.finding import Finding, listed, plural
from collbench.machine.doctor.view import View
from collbench.units import format_bytes

_LEAST_SHM = 1 << 30
_MOST_DOUBTS = 10


def small_shm(view: View) -> Iterator[Finding]:
    """CB2401: less than 1 GiB of /dev/shm; Docker gives 64 MiB unless told otherwise."""
    size = view.machine.system.shm_bytes
    if size is None or size >= _LEAST_SHM:
        return
    inside = view.machine.system.container
    yield view.finding(
        "CB2401", "warning", f"/dev/shm has {format_bytes(size)}: NCCL and MPI need more for the ranks of one host",
        f"size of the file system at /dev/shm{f', in a container ({inside})' if inside else ''}",
        "in a container: --shm-size=8g or --ipc=host, in Kubernetes an emptyDir of medium Memory; else mount it with size=",
    )  # fmt: skip


def numa_unknown(view: View) -> Iterator[Finding]:
    """CB2402: GPUs or RDMA devices without a NUMA node on bare metal with several: -1 is unknown, not node 0."""
    if view.virtual_machine is not False or len(view.machine.numa_nodes) < 2:
        return
    parts = [*((gpu.key, f"GPU {gpu.key}") for gpu in view.machine.gpus), *((nic.key, nic.name) for nic in view.rdma)]
    bare = [name for key, name in parts if view.distances.numa_of(key) is None]
    if bare:
        yield view.finding(
            "CB2402", "note", f"nobody says at which NUMA node {listed(bare)} {'is' if len(bare) == 1 else 'are'}",
            f"numa_node is -1 or missing; the machine has {plural(len(view.machine.numa_nodes), 'NUMA node')}",
            "update the firmware; until then look the slot up in the board's manual and bind ranks by hand (`numactl --cpunodebind=NODE`)",
        )  # fmt: skip


def doubts(view: View) -> Iterator[Finding]:
    """CB2403: what a source says and should not be relied on."""
    for text in view.machine.doubts[:_MOST_DOUBTS]:
        yield _doubt(view, "CB2403", text, f"sources: {listed(view.machine.sources)}")
    if len(view.machine.doubts) > _MOST_DOUBTS:
        more = len(view.machine.doubts) - _MOST_DOUBTS
        yield _doubt(view, "CB2403", f"{plural(more, 'more doubt')} of the same sources", "`collbench probe` lists them all")


def disagreements(view: View) -> Iterator[Finding]:
    """CB2404: sources that say different things of one fact."""
    all_of_them = view.machine.disagreements
    for each in all_of_them[:_MOST_DOUBTS]:
        yield _doubt(view, "CB2404", f"{each.path}: {each.taken} or {each.other}?", f"{each.taken_from} (taken) and {each.other_from}")
    if len(all_of_them) > _MOST_DOUBTS:
        text = f"{plural(len(all_of_them) - _MOST_DOUBTS, 'more disagreement')} between the same sources"
        yield _doubt(view, "CB2404", text, "`collbench probe --format json` lists them all")


def _doubt(view: View, code: str, what: str, evidence: str) -> Finding:
    return view.finding(
        code, "note", what, evidence, "compare with the machine itself: `collbench probe` there, or sysfs and lspci beside it"
    )


RULES = (small_shm, numa_unknown, doubts, disagreements)
