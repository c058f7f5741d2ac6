"""The committed examples of every kind of file that collbench reads, in memory and cut short: what hostile files are made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.stored import stored_reports

ROOT = Path(__file__).parents[2]
REPORTS, PEERS = ROOT / "reports", ROOT / "tests" / "plugins" / "importers" / "samples"
_ROWS, _SAMPLES = 4, 1 << 16
_RUNS = (
    "first-run",
    "two-hosts",
    "regression/after/launch-1",
    "published-8xa100/nccl-tests-8xa100",
    "pairs-trials/host-0",
    "cpu-sweep",
)
CHANGES = b"""[[change]]
kind = "software"
what = "nccl version"
reason = "the new image"
reviewer = "ops"
expires = 2027-01-31

[[change]]
operation = "allreduce"
sizes = "1M-16M"
slower_percent = 12.5
reason = "tracing is on"
reviewer = "ops"
expires = 2027-01-31
"""
Folder = Mapping[str, bytes]


class Files:
    """The committed examples, read once."""

    def __init__(self) -> None:
        self.runs: list[Folder] = [_run(REPORTS / name) for name in _RUNS if (REPORTS / name).is_dir()]
        self.runs.append(_run(stored_reports() / "link-1gbit/p2p"))
        self.peers = {path.name: path.read_bytes() for path in sorted(PEERS.glob("*"))}
        self.suites = {path.name: path.read_bytes() for path in sorted((ROOT / "collbench" / "operations" / "suites").glob("*.toml"))}
        self.suites |= {path.name: path.read_bytes() for path in sorted((REPORTS / "suites").glob("*.toml"))}
        self.verdicts = [path.read_bytes() for path in sorted(REPORTS.glob("gate-trials/*/verdict.json"))]
        self.baseline = {path.name: path.read_bytes() for path in sorted((stored_reports() / "gate-trials/baseline-link").iterdir())}
        self.topology = {path.name: path.read_bytes() for path in sorted((REPORTS / "example-node").iterdir())}
        self.candidate = {path.name: _all(path) for path in sorted((stored_reports() / "gate-trials/link-0/runs/1-first").iterdir())}


def _run(folder: Path) -> Folder:
    """The first rows of a run, and their samples: so small that much can be played."""
    found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file() and path.name != "samples.bin"}
    for name in ("cells.jsonl", "events.jsonl"):
        if name in found:
            found[name] = b"".join(found[name].splitlines(keepends=True)[:_ROWS])
    samples = folder / "samples.bin"
    return {**found, "samples.bin": samples.read_bytes()[:_SAMPLES]} if samples.exists() else found


def _all(folder: Path) -> Folder:
    """The files of a run."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
