"""Pictures of probed machines as files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from collbench.errors import UsageError
from collbench.machine.model import Machine
from collbench.machine.snapshot import topology_json
from collbench.report.flags import printable
from collbench.report.probe_picture import picture

_MOST = 64  # pictures of one cluster
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def write_pictures(machines: Sequence[Machine], file: Path) -> list[Path]:
    """One SVG file per machine, equal ones once: `file` for one, else "file-host.svg" for each, at most 64.

    Raises UsageError where a file cannot be written.
    """
    names = [entry["hostnames"][0] for entry in topology_json(machines)["machines"]]
    by_name = {machine.hostname: machine for machine in machines}
    chosen = [by_name[name] for name in names][:_MOST] if len(by_name) == len(machines) else list(machines)[:_MOST]
    files = [file] if len(chosen) == 1 else [_named(file, machine, place) for place, machine in enumerate(chosen, 1)]
    for target, machine in zip(files, chosen, strict=True):
        try:
            target.write_text(picture(machine), encoding="utf-8")
        except (OSError, ValueError) as why:
            reason = getattr(why, "strerror", None) or str(why)
            raise UsageError(f"--svg {printable(str(target))} cannot be written ({reason}): name a file in a folder of your own") from None
    return files


def _named(file: Path, machine: Machine, place: int) -> Path:
    host = _NOT_IN_NAMES.sub("_", machine.hostname or "") or str(place)
    return file.with_name(f"{file.stem}-{host}{file.suffix}")
