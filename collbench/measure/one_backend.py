"""Launches that measure on one backend: which one that is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from collbench.backends.registry import backend_class
from collbench.control.world import World
from collbench.errors import RunFailed, UsageError
from collbench.measure.opening import Opened, missing_anywhere, open_backends
from collbench.measure.request import Request


def first_at_hand(request: Request, world: World, note: Callable[[str], None]) -> Opened:
    """The first of the request's backends that all ranks can open. Raises UsageError or RunFailed where there is none."""
    why: list[str] = []
    for name in request.backends:
        missing = None if name in request.asked else missing_anywhere(name, backend_class(name), world)
        if missing:
            note(f"without {name}: {missing}")
            continue
        (one,) = open_backends(replace(request, backends=(name,)), world, note)
        if one.backend:
            return one
        why.append(f"{one.reason}")
        note(f"{name} is not measured: {one.reason}")
    if why:
        raise RunFailed(why[0])
    raise UsageError("no backend is at hand: pip install 'collbench[mpich]' or 'collbench[torch]' ('collbench backends' tells more)")
