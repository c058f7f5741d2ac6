"""jax on CPUs: collectives of jax.lax under jit and shard_map, run by XLA over Gloo.

A timed call is one call of the compiled function and the wait for its result, a new array that XLA allocates. Compilation and
copies between collbench's buffers and jax's arrays are not timed. XLA (of jax 0.10.2) sends bfloat16 as float32, and 8-bit floats
as float16.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from collbench.addresses import bracketed, free_port
from collbench.backends.backend import Available, Group, Settings, Unavailable, installed, stdout_elsewhere
from collbench.backends.host import AnyBuffers, Buffers, Elements, HostBackend
from collbench.backends.unavailable import Misconfigured, NotInstalled, UnknownVersion
from collbench.device.unavailable import Obstacle
from collbench.errors import RunFailed, UsageError
from collbench.machine.interfaces import interface_with
from collbench.operations.case import Case
from collbench.operations.data import Mismatch
from collbench.operations.operation import Operation, Reason, Steps, out_of_place_only
from collbench.operations.program import Program, PythonCall
from collbench.operations.unsupported import OperationUnsupported, RedopUnsupported

if TYPE_CHECKING:
    from collbench.control.world import World


AXIS = "ranks"


class JaxBuffers(Buffers):
    """The host buffers of one rank, with jax's arrays. These are immutable: every call creates a new one.

    Inputs are copied to jax when they are filled, results from it when they are checked. Neither copy is timed.

    inputs, results   its arrays per slot; a result is None before the first call
    compiled, wire    the compiled function, and the type in which XLA transfers the elements ("f32"); set on first use
    """

    def __init__(self, jax: Any, operation: Operation, case: Case, group: Group, slots: int) -> None:
        """Allocate the buffers. Raises MemoryError."""
        super().__init__(operation, case, group, slots)
        self._jax = jax
        self._n = group.n
        (self._device,) = group.handle.local_devices
        self._sharding = jax.sharding.NamedSharding(group.handle, jax.sharding.PartitionSpec(AXIS))
        self.compiled: Any = None
        self.wire = ""
        self.results: list[Any] = [None] * slots
        self.inputs: list[Any] = [self._array(self.send(0, slot)) for slot in range(slots)]

    def fill(self, slot: int, for_check: bool) -> None:
        """Write the inputs, and copy them to jax. Raises MemoryError."""
        super().fill(slot, for_check)
        self.inputs[slot] = self._array(self.send(0, slot))
        self.results[slot] = None

    def check(self, slot: int) -> list[Mismatch | None]:
        """Return the errors in the result of the last call. Without a call, the poison values remain and are reported."""
        if self.results[slot] is not None:
            (shard,) = self.results[slot].addressable_shards
            self.recv(0, slot)[:] = np.asarray(shard.data)
        return super().check(slot)

    def _array(self, elements: Elements) -> Any:
        """Return an array over all ranks of the group with these elements as this rank's part; a copy, for any alignment."""
        try:
            part = self._jax.device_put(elements, self._device, may_alias=False).block_until_ready()
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise MemoryError(f"jax cannot allocate {elements.nbytes} bytes: {str(error).splitlines()[0]}") from error
        shape = (self._n * len(elements),)
        return self._jax.make_array_from_single_device_arrays(shape, self._sharding, [part])


_INSTALL = "pip install 'collbench[jax]'"
_OLDEST = (0, 7)  # jax.shard_map with check_vma needs it
_NEXT = (1,)  # does not exist yet
# The values that these variables must have if they are set: the backend measures jax only on CPUs with Gloo.
_REQUIRED = {"JAX_PLATFORMS": "cpu", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}


def obstacle(environment: Mapping[str, str]) -> Obstacle | None:
    """Return why jax cannot be used here, or None. Imports no part of jax."""
    for package in ("jax", "jaxlib"):
        if installed(package) is None:
            return NotInstalled(package, _INSTALL)
    version = installed("jax") or ""
    numbers = tuple(int(word) for word in version.split(".")[:2] if word.isdecimal())
    if not _OLDEST <= numbers < _NEXT:
        return UnknownVersion("jax", version, "0.7 and newer, below 1", _INSTALL)
    for name, value in _REQUIRED.items():
        if environment.get(name, value) not in ("", value):
            problem = f"is '{environment[name]}', but collbench measures jax on CPUs with Gloo"
            return Misconfigured(name, problem, f"unset {name}, or set it to '{value}'")
    return None


def load_jax() -> Any:
    """Return jax, imported. Raises UsageError for any error of the import."""
    try:
        return import_module("jax")
    except Exception as error:
        text = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"jax {installed('jax')} is installed, but its import fails ({type(error).__name__}: {text}): "
            f"pip install --force-reinstall jax jaxlib, in an environment of its own if something else is in its way"
        ) from error


_CONFIG = {
    "jax_platforms": "cpu",
    "jax_cpu_collectives_implementation": "gloo",
    "jax_enable_x64": True,  # for 64-bit types
    "jax_enable_preemption_service": False,  # it would handle SIGTERM
}


def join(jax: Any, address: str, rank: int, ranks: int, interface: str, *, patience_s: int) -> list[Any]:
    """Join as `rank` at the coordinator and return the first device of each rank. Waits for all ranks. Raises RunFailed.

    Afterwards, jax itself ends a rank that loses its coordinator, with SIGABRT and a stack trace.
    """
    for name, value in _CONFIG.items():
        jax.config.update(name, value)
    try:
        jax.distributed.initialize(
            address, ranks, rank, cluster_detection_method="deactivate", initialization_timeout=patience_s,
            heartbeat_timeout_seconds=patience_s, shutdown_timeout_seconds=patience_s, coordinator_bind_address=address,
        )  # fmt: skip
        _use_interface(jax, interface)
        devices = {device.process_index: device for device in reversed(jax.devices())}
    except RuntimeError as error:
        raise RunFailed(f"jax's ranks do not come together at {address}: {str(error).splitlines()[0]}") from error
    return [devices[rank] for rank in range(ranks)]


def _use_interface(jax: Any, name: str) -> None:
    """Make jax's Gloo use this interface. By default it uses the host name's address, often loopback.

    jax has no public function for this. Raises RunFailed if the private one has disappeared.
    """
    try:
        make_client = import_module("jax._src.xla_bridge").make_cpu_client
        state = import_module("jax._src.distributed").global_state
        make_gloo = import_module("jaxlib._jax").make_gloo_tcp_collectives
        register = import_module("jax.extend.backend").register_backend_factory
    except (ImportError, AttributeError) as error:
        raise RunFailed(f"jax {jax.__version__} does not let Gloo's interface be chosen ({error}): {_INSTALL}") from error

    def client() -> Any:
        return make_client(collectives=make_gloo(distributed_client=state.client, interface=name))

    register("cpu", client, priority=0, fail_quietly=False)


def connect(jax: Any, mesh: Any) -> None:
    """Run one sum over a mesh; all of its ranks must call it. Gloo then connects and prints to stdout, which is suppressed."""
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(AXIS))
    with stdout_elsewhere():
        ones = jax.make_array_from_callback((mesh.size,), sharding, lambda _: np.ones(1, np.int32))
        jax.jit(lambda array: array.sum())(ones).block_until_ready()


REDUCTIONS = {"sum": "psum", "max": "pmax", "min": "pmin", "avg": "pmean"}
_COLLECTIVE = re.compile(r"= \(?([a-z0-9]+)\[[^=]*? (?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


class JaxBinding:
    """The argument of the step functions below, for one slot."""

    def __init__(self, jax: Any, group: Group, buffers: JaxBuffers, slot: int) -> None:
        self._jax = jax
        self._group = group
        self._buffers = buffers
        self._slot = slot
        self.case = buffers.case
        self.n = group.n
        self.lax = jax.lax

    def call(self, name: str, function: Callable[[Any], Any]) -> PythonCall:
        """Return a call of `function` on a rank's elements, compiled for these shapes. It ends when its new array is ready."""
        compiled = self._compiled(function)
        inputs = self._buffers.inputs
        results = self._buffers.results
        slot = self._slot

        def run() -> None:
            result = compiled(inputs[slot])
            result.block_until_ready()
            results[slot] = result

        return PythonCall(name, run)

    def _compiled(self, function: Callable[[Any], Any]) -> Any:
        """Return the compiled function, shared by all slots, since their arrays have the same shape."""
        buffers = self._buffers
        if buffers.compiled is None:
            spec = self._jax.sharding.PartitionSpec(AXIS)
            sharded = self._jax.shard_map(function, mesh=self._group.handle, in_specs=spec, out_specs=spec, check_vma=False)
            buffers.compiled = self._jax.jit(sharded).lower(buffers.inputs[self._slot]).compile()
            buffers.wire = _carried_as(buffers.compiled.as_text())
        return buffers.compiled


def _carried_as(compiled: str) -> str:
    """Return the element type of a compiled program's collective, in XLA's notation; "" without a collective (one rank)."""
    collective = _COLLECTIVE.search(compiled)
    return collective[1] if collective else ""


def _allreduce(x: JaxBinding) -> Iterator[PythonCall]:
    name = REDUCTIONS[x.case.redop or "sum"]
    function = getattr(x.lax, name)
    yield x.call(name, lambda part: function(part, AXIS))


def _sendrecv(x: JaxBinding) -> Iterator[PythonCall]:
    ring = [(rank, (rank + 1) % x.n) for rank in range(x.n)]
    yield x.call("ppermute", lambda part: x.lax.ppermute(part, AXIS, ring))


_LIKE = {
    "broadcast": "lax.pbroadcast is for GPUs, and multihost_utils.broadcast_one_to_all is an all-reduce of zeros",
    "barrier": "multihost_utils.sync_global_devices is an all-reduce and a comparison",
}
STEPS: Mapping[str, Steps] = {
    "allreduce": out_of_place_only(_allreduce),
    "allgather": out_of_place_only(lambda x: [x.call("all_gather", lambda part: x.lax.all_gather(part, AXIS, tiled=True))]),
    "reducescatter": out_of_place_only(lambda x: [x.call("psum_scatter", lambda part: x.lax.psum_scatter(part, AXIS, tiled=True))]),
    "alltoall": out_of_place_only(lambda x: [x.call("all_to_all", lambda part: x.lax.all_to_all(part, AXIS, 0, 0, tiled=True))]),
    "sendrecv": out_of_place_only(_sendrecv),
    **dict.fromkeys(_LIKE, lambda x: []),  # `unsupported` excludes them
}


def unsupported(operation: str, redop: str | None) -> Reason | None:
    """Return why jax does not have the operation on CPUs, or not with this redop; else None."""
    if operation in _LIKE:
        return OperationUnsupported("jax", operation, note=_LIKE[operation])
    redops = ("sum",) if operation == "reducescatter" else tuple(REDUCTIONS)
    return RedopUnsupported("jax", redop, operation, redops) if redop and redop not in redops else None


_LATER = 2  # factor of jax's timeout to the watchdog's, which is shorter since it can name the missing ranks


class JaxBackend(HostBackend):
    """The backend jax: the ranks' CPUs as one jax mesh."""

    name = api = "jax"
    local_path = "loopback"
    steps = STEPS
    no_cuda = "jax is measured on CPUs here: --backend nccl measures the library that it uses on GPUs"
    _wire = ""

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether supported versions of jax and jaxlib are installed. Imports neither."""
        problem = obstacle(os.environ)
        return Unavailable.because(problem) if problem else Available(f"jax {installed('jax')} over Gloo")

    def open(self, world: World, settings: Settings) -> None:
        """Import jax and join all ranks at a coordinator on rank 0. Raises UsageError for a broken jax, else RunFailed."""
        self._jax = load_jax()
        self.rank, self.ranks = world.rank, world.size
        self._interface = interface_with(world.me.address)
        host = world.members[0].address
        port = world.broadcast(free_port(host) if world.rank == 0 else 0, "opening jax: the coordinator's port")
        address = f"{bracketed(host)}:{port}"
        self._devices = join(self._jax, address, self.rank, self.ranks, self._interface, patience_s=int(_LATER * settings.timeout_s))

    def communicator(self, ranks: Sequence[int]) -> Any:
        """Return a mesh of these ranks' devices. Its ranks connect at once."""
        mesh = self._jax.sharding.Mesh(np.array([self._devices[rank] for rank in ranks]), (AXIS,))
        if self.rank in ranks:
            connect(self._jax, mesh)
        return mesh

    def allocate(self, operation: Operation, case: Case, group: Group, slots: int) -> AnyBuffers:
        """Return host buffers with jax's arrays. Raises MemoryError."""
        return JaxBuffers(self._jax, operation, case, group, slots)

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> JaxBinding:
        """Return the binding with the compiled function over the arrays of a slot."""
        assert isinstance(buffers, JaxBuffers)
        return JaxBinding(self._jax, group, buffers, slot)

    def bind(self, operation: Operation, case: Case, group: Group, buffers: AnyBuffers) -> Program:
        """Compile the program, and record the type in which XLA transfers the case's elements."""
        program = super().bind(operation, case, group, buffers)
        assert isinstance(buffers, JaxBuffers)
        self._wire = buffers.wire
        return program

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why jax.lax does not support the operation or reduction on CPUs, else None."""
        return unsupported(operation.name, case.redop)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of jax, the library of its collectives, and the transfer type of the last bound case."""
        versions = {"jax": self._jax.__version__, "jaxlib": str(installed("jaxlib")), "cpu_collectives": "gloo"}
        versions |= {"gloo_interface": self._interface, "xla_flags": os.environ.get("XLA_FLAGS", ""), "compile": "not timed"}
        if self._wire:
            versions["wire_type"] = self._wire
        return versions

    def close(self) -> None:
        """Disconnect from the coordinator."""
        self._jax.distributed.shutdown()
