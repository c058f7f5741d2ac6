"""`collbench probe --svg`: drawings of probed machines as files."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from collbench.cli.parser import Parser
from collbench.errors import UsageError
from collbench.machine.model import Machine
from collbench.machine.snapshot import topology_json
from collbench.plugins.drawings.machine import picture
from collbench.report.frame import printable

_MOST = 64  # pictures of one cluster
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def add_options(parser: Parser) -> None:
    """Add --svg to `probe`."""
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the node there, too; of nodes that differ one file each")


def draw(machines: Sequence[Machine], arguments: argparse.Namespace) -> None:
    """Draw the probed machines, with --svg. Raises UsageError if a file cannot be written."""
    if arguments.svg:
        for file in write_pictures(machines, arguments.svg):
            print(f"drawn: {file}", file=sys.stderr)


def write_pictures(machines: Sequence[Machine], file: Path) -> list[Path]:
    """Write one SVG file per machine, equal ones once, and return the paths.

    The file is `file` for one machine, else "file-host.svg" for each, at most 64. Raises UsageError if a file cannot be written.
    """
    names = [entry["hostnames"][0] for entry in topology_json(machines)["machines"]]
    by_name = {machine.hostname: machine for machine in machines}
    chosen = [by_name[name] for name in names][:_MOST] if len(by_name) == len(machines) else list(machines)[:_MOST]
    hosts = [_NOT_IN_NAMES.sub("_", machine.hostname or "") or str(place) for place, machine in enumerate(chosen, 1)]
    files = [file] if len(chosen) == 1 else [file.with_name(f"{file.stem}-{host}{file.suffix}") for host in hosts]
    for target, machine in zip(files, chosen, strict=True):
        try:
            target.write_text(picture(machine), encoding="utf-8")
        except (OSError, ValueError) as why:
            reason = getattr(why, "strerror", None) or str(why)
            raise UsageError(f"--svg {printable(str(target))} cannot be written ({reason}): name a file in a folder of your own") from None
    return files
