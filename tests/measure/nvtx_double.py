"""A double of the package `nvtx`: it notes each range in the file that NVTX_DOUBLE names. Copied as nvtx.py into a folder of the path."""

import os
import time
from pathlib import Path


class Domain:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        _note(f"push\t{self.name}\t{attributes}")

    def pop_range(self) -> None:
        _note("pop")


def get_domain(name: str) -> Domain:
    return Domain(name)


def _note(line: str) -> None:
    with Path(f"{os.environ['NVTX_DOUBLE']}.{os.getpid()}").open("a") as file:
        file.write(f"{time.monotonic_ns()}\t{line}\n")
