"""How ranks come together for jax: a coordinator at rank 0, a client of XLA's on each rank, and connections of Gloo's per group."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from collbench.addresses import bracketed, listen_at
from collbench.backends.arrays import AXIS
from collbench.errors import RunFailed

_CONFIG = {
    "jax_platforms": "cpu",
    "jax_cpu_collectives_implementation": "gloo",
    "jax_enable_x64": True,  # else there are no types of 64 bits
    "jax_enable_preemption_service": False,  # it would take SIGTERM
}


def free_port(host: str) -> int:
    """A port that is free at this address now. jax takes no open socket."""
    with listen_at(host) as listener:
        return int(listener.getsockname()[1])


def join(jax: Any, coordinator: tuple[str, int], place: tuple[int, int], interface: str, patience_s: int) -> list[Any]:
    """Joins as rank `place[0]` of `place[1]`; the first device of each rank. Waits for all ranks. Raises RunFailed.

    Once joined, a rank whose coordinator is gone is ended by jax itself: SIGABRT, with a stack trace.
    """
    host, port = coordinator
    address = f"{bracketed(host)}:{port}"
    for name, value in _CONFIG.items():
        jax.config.update(name, value)
    try:
        jax.distributed.initialize(
            address, place[1], place[0], cluster_detection_method="deactivate", initialization_timeout=patience_s,
            heartbeat_timeout_seconds=patience_s, shutdown_timeout_seconds=patience_s, coordinator_bind_address=address,
        )  # fmt: skip
        _use_interface(jax, interface)
        devices = {device.process_index: device for device in reversed(jax.devices())}
    except RuntimeError as error:
        raise RunFailed(f"jax's ranks do not come together at {address}: {str(error).splitlines()[0]}") from error
    return [devices[rank] for rank in range(place[1])]


def _use_interface(jax: Any, name: str) -> None:
    """Lets jax make its client as it does, with Gloo on this interface: left alone it takes the host name's address, often loopback.

    jax has no public way to say so. Raises RunFailed where the one taken here is no more.
    """
    try:
        bridge, state = import_module("jax._src.xla_bridge"), import_module("jax._src.distributed").global_state
        make, gloo = bridge.make_cpu_client, import_module("jaxlib._jax").make_gloo_tcp_collectives
        register = import_module("jax.extend.backend").register_backend_factory
    except (ImportError, AttributeError) as error:
        remedy = "pip install -c constraints.txt 'collbench[jax]'"
        raise RunFailed(f"jax {jax.__version__} does not let Gloo's interface be chosen ({error}): {remedy}") from error

    def client() -> Any:
        return make(collectives=gloo(distributed_client=state.client, interface=name))

    register("cpu", client, priority=0, fail_quietly=False)


def connect(jax: Any, mesh: Any) -> None:
    """One sum over a mesh's ranks, which all call: Gloo connects them, and says so on stdout, where nobody is to read it."""
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
    with _quiet_stdout():
        ones = jax.make_array_from_callback((mesh.size,), sharding, lambda _: np.ones(1, np.int32))
        jax.jit(lambda whole: whole.sum())(ones).block_until_ready()


def mesh_of(jax: Any, devices: Sequence[Any]) -> Any:
    """A mesh with one axis."""
    return jax.sharding.Mesh(np.array(devices), (AXIS,))


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Nothing that this process's libraries write to stdout meanwhile arrives there."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
