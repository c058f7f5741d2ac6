"""How Horovod starts: what is installed, what its ranks are told, and the server at which its Gloo finds them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collbench.backends.stacks import installed, loaded
from collbench.errors import UsageError

if TYPE_CHECKING:
    from collbench.control.world import World

_KNOWN = "0.28."
_GET = "scripts/horovod .venv-horovod builds it with Gloo, into an environment of its own"
_OTHER_LAUNCH = "collbench tells Horovod its ranks itself: start it by --ranks, mpirun, srun or torchrun"
_LATER = 2  # Gloo gives up later than the watchdog, which can say who is missing


def trouble(env: Mapping[str, str]) -> tuple[str, str] | None:
    """Why there is no Horovod to open here, with the remedy; None where there is one. Imports nothing of it, nor torch."""
    found, torch = installed("horovod"), installed("torch")
    if found is None or find_spec("horovod") is None:
        return "horovod is not installed", _GET
    if not found.startswith(_KNOWN):
        return f"horovod {found} is installed, and this backend knows {_KNOWN}x alone", _GET
    if torch is None:
        return f"horovod {found} is installed, but torch is not", _GET
    if "HOROVOD_RANK" in env:
        return "this was started by horovodrun, or what sets HOROVOD_RANK", _OTHER_LAUNCH
    return _misbuilt(found, torch, _folder())


def _folder() -> Path:
    spec = find_spec("horovod")
    return Path(next(iter(spec.submodule_search_locations or [])) if spec else "")


def _misbuilt(found: str, torch: str, folder: Path) -> tuple[str, str] | None:
    """Why this build cannot serve this torch: `folder/metadata.json` tells for which one it was compiled."""
    if not any(folder.glob("torch/mpi_lib_v2*.so")):
        return f"horovod {found} was built without torch", _GET
    try:
        built = str(json.loads((folder / "metadata.json").read_text())["pytorch"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it does not say; loading it will
    if built.partition("+")[0] != torch.partition("+")[0]:
        return f"horovod {found} was built for torch {built}, and torch {torch} is installed", _GET
    return None


def load_horovod() -> Any:
    """horovod.torch. Raises UsageError for one that is broken, or has no Gloo."""
    hvd = loaded("horovod", _import, _GET)
    if not hvd.gloo_built():
        raise UsageError(f"horovod {installed('horovod')} was built without Gloo, over which collbench measures it: {_GET}")
    return hvd


def _import() -> Any:
    hvd = import_module("horovod.torch")
    if not hasattr(hvd, "init"):  # it prints why, and goes on without its library
        raise ImportError
    return hvd


def of_user(env: Mapping[str, str]) -> dict[str, str]:
    """The settings of Horovod's that the user has made, by their names in small letters. Raises UsageError for a cycle that is no time."""
    cycle = env.get("HOROVOD_CYCLE_TIME", "1")
    try:
        wrong = not 0 <= float(cycle) < float("inf")
    except ValueError:
        wrong = True
    if wrong:
        raise UsageError(f"HOROVOD_CYCLE_TIME is '{cycle}', and Horovod would take that for 0: give it milliseconds, as in 0.1")
    return {name.lower(): value for name, value in sorted(env.items()) if name.startswith("HOROVOD_")}


def told(world: World, timeout_s: float, grouped: bool) -> dict[str, str]:
    """The variables by which horovodrun tells a rank its place (horovod/runner/gloo_run.py, 0.28.1), and whether process sets follow."""
    local = [member.rank for member in world.on_host()].index(world.rank)
    across = [host for host in world.hosts if len(world.on_host(host)) > local]
    place = {"RANK": world.rank, "SIZE": world.size, "LOCAL_RANK": local, "LOCAL_SIZE": len(world.on_host())}
    place |= {"CROSS_RANK": across.index(world.me.host), "CROSS_SIZE": len(across)}
    words = {"HOSTNAME": f"host{world.hosts.index(world.me.host)}", "CONTROLLER": "gloo", "CPU_OPERATIONS": "gloo"}
    words |= {"DYNAMIC_PROCESS_SETS": str(int(grouped)), "GLOO_TIMEOUT_SECONDS": str(max(1, round(_LATER * timeout_s)))}
    return {f"HOROVOD_{name}": str(value) for name, value in (place | words).items()}


@contextmanager
def rendezvous(world: World) -> Iterator[None]:
    """A rendezvous server of Horovod's at rank 0, told to all ranks, for as long as they join: later it would only wake up and sleep."""
    server, port = None, 0
    if world.rank == 0:
        server = import_module("horovod.runner.http.http_server").RendezvousServer()
        port = server.start()
        server.init([])
    os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"] = world.members[0].address
    os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(world.decide(port, "opening horovod: the rendezvous port"))
    try:
        yield
        world.agree(None, "opening horovod: all ranks have joined")
    finally:
        if server:
            server.stop()
