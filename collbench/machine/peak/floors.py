"""Minimum bus bandwidths for health checks, in the forms of Azure's node health checks, NVIDIA's Cluster Readiness Engine and ReFrame.

Forms: https://github.com/Azure/azurehpc-health-checks (conf/nd96isr_h200_v5.conf, customTests/azure_nccl_allreduce.nhc),
https://github.com/NVIDIA/cluster-readiness-engine (docs/designs/054-multi-scale-nccl-validation.md, docs/api-reference/certification.md),
and `reference` of a ReFrame test: https://reframe-hpc.readthedocs.io/en/stable/regression_test_api.html
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import floor

import msgspec

from collbench.errors import UsageError
from collbench.machine.peak.ceiling import name_of_model
from collbench.machine.peak.collective import CollectiveCeilings
from collbench.machine.peak.comparison import limit_of
from collbench.machine.peak.node import Job
from collbench.machine.peak.published import published
from collbench.machine.peak.time_model import expected_times, why_no_model
from collbench.units import format_percent, format_rate, format_size, plural

_SATURATED = 98.0  # percent of the expected rate: smaller sizes of healthy machines are much slower than NCCL's model expects
_LARGE = 16 * 2**30  # the size of Azure's checks
_NVCRE = {"allreduce": "nccl-all-reduce", "allgather": "nccl-all-gather", "alltoall": "nccl-alltoall"}


class BandwidthFloor(msgspec.Struct, frozen=True):
    """The minimum bus bandwidth of an operation and size.

    share             of the expected rate, above 0 and up to 1
    reasons           why: the expected rate, its algorithm and source, and published results, one sentence each
    """

    size_bytes: int
    expected_bytes_per_s: float
    share: float
    reasons: tuple[str, ...]

    @property
    def gb_per_s(self) -> float:
        """The minimum in GB/s, rounded down to one digit; smaller rates to three significant digits."""
        rate = self.share * self.expected_bytes_per_s / 1e9
        return floor(rate * 10 + 1e-9) / 10 if rate >= 10 else float(f"{rate * 0.9995:.3g}")


def parse_share(text: str) -> float:
    """Return 0.85 of "85%" and "85". Raises UsageError for anything but a percentage above 0 and up to 100."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip(), re.ASCII)
    percent = float(match[1]) if match else 0.0
    if not 0 < percent <= 100:
        raise UsageError(f"--floor {text}: not a percentage above 0 and up to 100 (use e.g. 85%)")
    return percent / 100


def floors_of(operation: str, job: Job, references: CollectiveCeilings, share: float, sizes: Sequence[int] | None) -> list[BandwidthFloor]:
    """Return the floor of each size; without sizes that of 16 GiB.

    Raises UsageError for an operation without an expected rate, and for sizes that do not reach it: their rate is not known well enough.
    """
    expected = references.expected
    if expected is None or expected.bytes_per_s is None:
        raise UsageError(f"peak {operation}: a floor needs an expected rate, and this operation has none: leave out --floor")
    rates = {_LARGE: expected.bytes_per_s}
    if sizes is not None or why_no_model(operation, job) is None:
        times = expected_times(operation, job, sizes or [_LARGE])
        rates = {row.size_bytes: row.busbw_bytes_per_s for row in times}
        small = next((row for row in times if row.plateau_percent < _SATURATED), None)
        if small is not None:
            raise UsageError(
                f"--floor: {format_size(small.size_bytes)} reaches {format_percent(small.plateau_percent)} of the expected rate, so that "
                f"healthy machines differ too much for a floor: use sizes that reach {_SATURATED:g} % (see --sizes without --floor)"
            )
    figures = published(operation, job)
    algorithm = "" if expected.kind == "given" else f" by the algorithm {name_of_model(expected.model)}"
    floors = []
    for size, rate in rates.items():
        reasons = [f"expected{algorithm}, limited by {limit_of(expected)}"]
        for figure in figures:  # one that the floor rejects has a warning, unless it was forced to use another algorithm
            below = figure.algorithm in (None, expected.model) and figure.busbw_bytes_per_s[0] < share * rate
            reasons.append(f"{'warning: below this floor: ' if below else 'published: '}{figure.render()}")
        floors.append(BandwidthFloor(size, rate, share, tuple(reasons)))
    return floors


def render(floors: Sequence[BandwidthFloor], operation: str, job: Job, form: str) -> str:
    """Return the floors as text: "nhc", "nvcre", "reframe" or "json". Raises UsageError for a job that the form cannot express."""
    writers = {"nhc": _nhc, "nvcre": _nvcre, "reframe": _reframe, "json": _json}
    return writers[form](floors, operation, job)


def _comments(floor_of_size: BandwidthFloor, operation: str, job: Job) -> list[str]:
    """Return the reasoning, one comment line each."""
    size = format_size(floor_of_size.size_bytes)
    share = format_percent(100 * floor_of_size.share)
    expected = format_rate(floor_of_size.expected_bytes_per_s)
    where = f"{job.ranks} GPUs on {plural(job.machines, 'node')}"
    head = f"{operation}, {where}, {size}: {floor_of_size.gb_per_s:g} GB/s is {share} of {expected} GB/s"
    return [f"# {text}" for text in (head, *floor_of_size.reasons)]


def _short(size_bytes: int) -> str:
    """Return "16G", as nccl-tests reads it; bytes for sizes that are not a whole number of M or G."""
    for letter, unit in (("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit}{letter}"
    return str(size_bytes)


def _nhc(floors: Sequence[BandwidthFloor], operation: str, job: Job) -> str:
    if operation != "allreduce" or job.machines > 1:
        raise UsageError("--emit nhc: Azure's check measures allreduce on the GPUs of one node: use allreduce without --nodes")
    lines = []
    for row in floors:
        lines += [*_comments(row, operation, job), f" * || check_nccl_allreduce {row.gb_per_s:.1f} 1 {_short(row.size_bytes)}"]
    return "\n".join(lines)


def _nvcre(floors: Sequence[BandwidthFloor], operation: str, job: Job) -> str:
    if operation not in _NVCRE:
        raise UsageError(f"--emit nvcre: the Cluster Readiness Engine does not measure {operation}: use {', '.join(_NVCRE)}")
    row = max(floors, key=lambda row: row.size_bytes)
    scale = "testScale: intra-node" if job.machines == 1 else f"nodesPerJob: {job.machines}"
    note = "# The engine compares the largest busbw of all sizes with the threshold: here up to the largest size given."
    return "\n".join([
        *_comments(row, operation, job), note,
        "apiVersion: nvcre.nvidia.com/v1alpha1", "kind: Certification", "metadata:", f"  name: floor-{_NVCRE[operation]}",
        "spec:", "  target:", "    nodeSelector:", '      nvidia.com/gpu.present: "true"', "  categories:",
        "    - domain: communication", f"      variant: {_NVCRE[operation]}", "      options:", f"        {scale}",
        f'        maxBytes: "{_short(row.size_bytes)}"', "        thresholds:", f'          busBandwidthGBps: "value >= {row.gb_per_s:g}"',
    ])  # fmt: skip


def _reframe(floors: Sequence[BandwidthFloor], operation: str, job: Job) -> str:
    lines = ["reference = {", "    '*': {"]
    for row in floors:
        expected = row.expected_bytes_per_s / 1e9
        lower = row.gb_per_s / expected - 1
        lines += [f"        {comment}" for comment in _comments(row, operation, job)]
        lines.append(f"        '{operation}_{_short(row.size_bytes)}_busbw': ({expected:.4g}, {lower:.4f}, None, 'GB/s'),")
    return "\n".join([*lines, "    },", "}"])


def _json(floors: Sequence[BandwidthFloor], operation: str, job: Job) -> str:
    rows = [{**msgspec.to_builtins(row), "floor_bytes_per_s": row.gb_per_s * 1e9} for row in floors]
    return json.dumps({"operation": operation, "nodes": job.machines, "ranks": job.ranks, "floors": rows}, ensure_ascii=False, indent=2)
