"""Tasks that run at the same time, each in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from collbench.errors import WaitExpired

T = TypeVar("T")


def at_once(tasks: Sequence[Callable[[], T]], what: str, patience_s: float | None = None) -> list[T]:
    """What each task gave, in their order. Raises the first error of any, WaitExpired where one has not ended within `patience_s`."""
    found: dict[int, T] = {}
    errors: list[BaseException] = []

    def run(place: int) -> None:
        try:
            found[place] = tasks[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience_s)
    if errors:
        raise errors[0]
    if len(found) < len(tasks):
        raise WaitExpired(f"{what}: {len(tasks) - len(found)} of {len(tasks)} threads did not end within {patience_s:g} s")
    return [found[place] for place in range(len(tasks))]
