"""NIXL: agents that write blocks into one another's registered memory through UCX. `collbench kv` uses it; it has no collectives.

The Python API of the wheel is used, as vLLM and Dynamo use it. One agent per rank lives as long as the launch; a transfer registers its own
memory. Agents have no progress thread: both ranks poll, as they do nothing else while they wait.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Group, Settings, Unavailable, installed, loaded
from collbench.backends.host import AnyBuffers, HostBackend
from collbench.backends.unavailable import NotInstalled
from collbench.errors import RunFailed
from collbench.operations.case import Case
from collbench.operations.operation import Operation, Reason
from collbench.operations.unsupported import OperationUnsupported
from collbench.plugins.libraries.common import user_settings

if TYPE_CHECKING:
    from collbench.control.world import World

WHEELS = {"nixl_cu13": "nixl-cu13", "nixl_cu12": "nixl-cu12"}  # by module: on host memory both do the same
TRANSPORT = "UCX"  # NIXL's plug-in
_REMEDY = "use tools/nixl VENV, or pip install --no-deps nixl-cu13"  # its requirements are torch and CUDA's packages


def wheel() -> str | None:
    """Return the module of the installed wheel, or None. Imports nothing."""
    return next((module for module in WHEELS if find_spec(module)), None)


class NixlBackend(HostBackend):
    """The backend nixl. `agent`, once open, is this rank's nixl_agent, and `name_of` has its name."""

    name = api = "nixl"
    local_path = "memory"
    agent: Any = None

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether a wheel of NIXL is installed. Imports nothing of it."""
        module = wheel()
        if module is None:
            return Unavailable.because(NotInstalled("nixl-cu13", _REMEDY))
        return Available(f"NIXL {installed(WHEELS[module])} over {TRANSPORT}, for `collbench kv` only")

    def open(self, world: World, settings: Settings) -> None:
        """Import NIXL and create this rank's agent. Raises UsageError if it does not load, RunFailed without an agent."""
        module = wheel() or "nixl_cu13"
        nixl = loaded(WHEELS[module], lambda: import_module(module), f"remove it, then {_REMEDY}")
        logging.getLogger("nixl").setLevel(logging.WARNING)  # it prints each agent to stdout
        self.rank, self.ranks = world.rank, world.size
        self._version = str(installed(WHEELS[module]))
        name = f"collbench-{world.rank}-{secrets.token_hex(8)}"
        try:
            self.agent = nixl.nixl_agent(name, nixl.nixl_agent_config(enable_prog_thread=False, backends=[TRANSPORT]))
        except Exception as error:  # NIXL's exceptions have no common class
            raise RunFailed(f"{world.me} cannot create a NIXL agent ({error}): check UCX_TLS and UCX_NET_DEVICES") from error
        if TRANSPORT not in self.agent.backends:
            raise RunFailed(f"NIXL on {world.me} lacks the plug-in {TRANSPORT}: reinstall its wheel")

    def communicator(self, ranks: Sequence[int]) -> None:
        """Return None: agents need each other's metadata, and no communicator."""

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> None:
        """Return None: `supports` rejects every operation."""

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return that NIXL has no operations between ranks, only writes and reads of registered memory."""
        return OperationUnsupported(self.name, operation.name)

    def versions(self) -> Mapping[str, str]:
        """Return NIXL's version, what its time includes, and all NIXL_* and UCX_* settings. It has no query for UCX's transports."""
        return {
            "nixl": self._version,
            "nixl_plugin": TRANSPORT,
            "nixl_progress": "both ranks poll, without a progress thread",
            "not_timed": "registration of memory, exchange of metadata, preparation of the lists of blocks",
            **user_settings("NIXL_", "UCX_"),
        }

    def close(self) -> None:
        """Destroy the agent."""
        self.agent = None
