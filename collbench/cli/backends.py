"""collbench backends: each backend, whether it is available here, or why not and how to get it."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> dict[str, argparse.ArgumentParser]:
    """Adds the command."""
    parser = commands.add_parser("backends", help="each backend: available, or why not and how to get it")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="text, or one JSON object per line (default: table)")
    parser.set_defaults(call=call)
    return {"backends": parser}


def call(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Prints one line per backend; 0 always: a missing backend is an answer."""
    import json
    from dataclasses import asdict

    from collbench.backends.backend import Unavailable
    from collbench.backends.registry import backend_class, backend_names

    for name in backend_names():
        kind = backend_class(name)
        answer = kind.probe()
        if arguments.format == "json":
            available = not isinstance(answer, Unavailable)
            print(json.dumps({"backend": name, "available": available, "devices": sorted(kind.devices), **asdict(answer)}))
        elif isinstance(answer, Unavailable):
            print(f"{name:<10} n/a        {answer}")
        else:
            print(f"{name:<10} available  {answer.about} ({', '.join(sorted(kind.devices))})")
    return 0
