"""TensorFlow's own collectives, as MultiWorkerMirroredStrategy uses them: the ring over gRPC, on host memory.

A timed call is one eager operation on an existing tensor over collbench's memory, with the copy of its result to the receive memory.
`.numpy()` makes that copy too. Each call includes TensorFlow's eager dispatch, and a gRPC round trip even inside a host.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from collbench.addresses import bracketed, listen_at
from collbench.backends.backend import Available, Group, Settings, Unavailable, loaded
from collbench.backends.host import AnyBuffers, Buffers, HostBackend
from collbench.backends.unavailable import NotInstalled, UnknownVersion, WrongBuild
from collbench.errors import RunFailed, UsageError
from collbench.operations.case import Case
from collbench.operations.groups import group_size
from collbench.operations.operation import Operation, Reason, Steps, out_of_place_only
from collbench.operations.program import Call, PythonCall
from collbench.operations.unsupported import DtypeUnsupported, GroupOrderUnsupported, LimitExceeded, OperationUnsupported, RedopUnsupported
from collbench.plugins.libraries.common import reorders_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collbench.control.world import World


HINT = "ring"
# (merge_op, final_op)
REDOPS = {"sum": ("Add", "Id"), "prod": ("Mul", "Id"), "min": ("Min", "Id"), "max": ("Max", "Id"), "avg": ("Add", "Div")}
_MOVED_AS = {2: "float16", 4: "int32", 8: "int64"}  # types for data that is only moved, supported by every collective
_ALIGN = 64  # bytes; TensorFlow ends the process if a tensor's memory is not aligned to them


@dataclass(frozen=True)
class Handle:
    """A group: the module, and TensorFlow's key and size of the group."""

    tf: Any = field(repr=False)
    key: int
    n: int


class TensorFlowBinding:
    """A tensor over the send memory, which sees later changes of it, and the receive memory as an array."""

    def __init__(self, buffers: Buffers, group: Group, slot: int) -> None:
        place = buffers.places[0]
        case = buffers.case
        operation = buffers.operation
        self._handle: Handle = group.handle
        self.tf = self._handle.tf
        self.n = group.n
        self.rank = place.rank
        self.root = place.root
        self.count = place.count
        self._reduced = case.dtype.name if operation.reduces else None
        type_name = self._reduced or _MOVED_AS[case.dtype.size]
        self.type = getattr(self.tf, type_name)
        numpy_type = np.dtype("uint16" if type_name == "bfloat16" else type_name)  # numpy cannot pass on bfloat16
        self.recv = buffers.recv(0, slot).view(numpy_type)
        self.send = self._tensor_over(buffers.send(0, slot).view(numpy_type))
        self.redop = REDOPS[case.redop] if case.redop else ("", "")
        # The number of a collective is the same at all ranks and different for each shape: TensorFlow rejects mixed shapes.
        shape = (operation.name, case.dtype.name, case.redop, case.root, self.count)
        self._instance = zlib.crc32(repr(shape).encode()) & 0x7FFFFFFF

    def _tensor_over(self, memory: Any) -> Any:
        """Return a tensor that shares its memory with the array, or None for an empty one. Raises RunFailed for unaligned memory."""
        if memory.ctypes.data % _ALIGN:
            raise RunFailed(f"tensorflow needs memory at a multiple of {_ALIGN} bytes, but this buffer is at {memory.ctypes.data:#x}")
        if not len(memory):
            return None
        tensor = self.tf.experimental.dlpack.from_dlpack(memory.__dlpack__())
        return self.tf.bitcast(tensor, self.tf.bfloat16) if self._reduced == "bfloat16" else tensor

    def call(self, name: str, **arguments: Any) -> Call:
        """Return a call of a raw operation over the group, which copies its result to the receive memory."""
        operation: Callable[..., Any] = getattr(self.tf.raw_ops, name)
        arguments |= {"group_size": self.n, "group_key": self._handle.key, "instance_key": self._instance, "communication_hint": HINT}
        bitcast = (lambda tensor: self.tf.bitcast(tensor, self.tf.uint16)) if self._reduced == "bfloat16" else None
        recv = self.recv
        op_error = self.tf.errors.OpError

        def collective() -> None:
            try:
                result = operation(**arguments)
                np.copyto(recv, np.asarray(memoryview(bitcast(result) if bitcast else result)).reshape(-1))
            except op_error as error:
                raise type(error)(error.node_def, error.op, _one_line(error)) from None

        return PythonCall(name, collective)


def _one_line(error: Any) -> str:
    """Return TensorFlow's message without the names of its nodes."""
    lines = str(error.message).splitlines() or [""]
    return lines[0].rpartition("}} ")[2]


def _allreduce(x: TensorFlowBinding) -> Iterator[Call]:
    merge, final = x.redop
    yield x.call("CollectiveReduceV2", input=x.send, ordering_token=[], merge_op=merge, final_op=final)


def _broadcast(x: TensorFlowBinding) -> Iterator[Call]:
    if x.rank == x.root:
        yield x.call("CollectiveBcastSendV2", input=x.send)
    else:
        yield x.call("CollectiveBcastRecvV2", T=x.type, shape=[x.count])


STEPS: Mapping[str, Steps] = {
    "allreduce": out_of_place_only(_allreduce),
    "allgather": out_of_place_only(lambda x: [x.call("CollectiveGatherV2", input=x.send, ordering_token=[])]),
    "alltoall": out_of_place_only(
        lambda x: [x.call("CollectiveAllToAllV2", input=x.tf.reshape(x.send, [x.n, x.count]), ordering_token=[])]
    ),
    "broadcast": out_of_place_only(_broadcast),
    "reducescatter": lambda x: [],  # `supports` excludes it, since it would end this process
}


# Printed before TensorFlow's log level can be set: information (I), warnings (W), and an error for a missing GPU.
_CHATTER = r"^([IW][0-9]{4} [0-9:.]+ |WARNING: All log messages before absl::|.* failed call to cuInit: )"
_REMEDY = "install it anew, pip install --force-reinstall 'collbench[tensorflow]', best in an environment of its own"


def load_tensorflow() -> Any:
    """Return the module. Raises UsageError with the reason if the import fails, for any error."""
    # Failed operations raise, and fatal errors are always printed: level 3 suppresses only harmless messages and repetitions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _filtered():
        return loaded("tensorflow", _import, _REMEDY)


def _import() -> Any:
    tensorflow = import_module("tensorflow")
    tensorflow.config.list_physical_devices()  # searches for CUDA, and prints the result
    return tensorflow


@contextmanager
def _filtered() -> Iterator[None]:
    """Filter stderr inside the block, in a separate process that outlives this one: so a fatal error inside the block is shown."""
    sys.stderr.flush()
    stderr = os.dup(2)
    try:
        grep = subprocess.Popen(["grep", "-Ev", "--line-buffered", _CHATTER], stdin=subprocess.PIPE, stdout=stderr)
    except OSError:  # grep is missing: do not filter
        os.close(stderr)
        yield
        return
    assert grep.stdin is not None
    os.dup2(grep.stdin.fileno(), 2)
    grep.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, 2)
        os.close(stderr)
        grep.wait()


_trainings = count(1)


class ServerLayout(msgspec.Struct, frozen=True):
    """The roles of the ranks, and the variables of the servers.

    servers, workers   ranks of the job
    counts             by server the elements of each of its variables; dtype: of all variables
    """

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    dtype: str


class ParameterServers:
    """This rank's part in a parameter-server training. All ranks create it together. Raises RunFailed with TensorFlow's error.

    Each rank has a tf.distribute.Server, variables are on the servers' devices, and a worker's step is one run of its graph. It adds its
    gradients to every server's variables (assign_add). It waits for all workers by tokens in queues on the first server, as
    SyncReplicasOptimizer does. Then it fetches the variables to its own device (identity).
    """

    def __init__(self, tf: Any, world: World, layout: ServerLayout, gradients: Sequence[NDArray[Any]]) -> None:
        """Create the servers and variables. gradients: at workers by server one array of all its elements; () at servers."""
        self._tf = tf
        self._layout = layout
        self._rank = world.rank
        self._container = f"training{next(_trainings)}"
        self._is_server = world.rank in layout.servers
        addresses = free_ports(world, "starting tensorflow's servers: their ports")
        self._start_server({"ps": [addresses[rank] for rank in layout.servers], "worker": [addresses[rank] for rank in layout.workers]})
        graph = tf.Graph()
        with graph.as_default(), tf.compat.v1.container(self._container):
            self._make_graph()
        # The session has its own configuration, since the default would be that of the strategy, which knows only its own tasks.
        self._session = tf.compat.v1.Session(self._server.target, graph, tf.compat.v1.ConfigProto())
        if self._is_server:
            self.clear()
        world.allgather(None, "making the parameter servers' variables")
        self._fill(gradients)
        world.allgather(None, "filling the workers' gradients")

    def _start_server(self, cluster: dict[str, list[str]]) -> None:
        job = "ps" if self._is_server else "worker"
        task = (self._layout.servers if self._is_server else self._layout.workers).index(self._rank)
        self._device = f"/job:{job}/task:{task}"
        try:
            self._server = self._tf.distribute.Server(self._tf.train.ClusterSpec(cluster), job_name=job, task_index=task)
        except self._tf.errors.OpError as error:
            raise RunFailed(f"tf.distribute.Server does not start at {cluster[job][task]}: {_error_line(error)}") from error

    def _make_graph(self) -> None:
        self._variables: list[list[Any]] = []
        for server, counts in enumerate(self._layout.counts):
            with self._tf.device(f"/job:ps/task:{server}"):
                self._variables.append([self._variable(f"model{server}_{i}", n) for i, n in enumerate(counts)])
        if self._is_server:
            variables = self._variables[self._layout.servers.index(self._rank)]
            self._clear = [variable.initializer for variable in variables]
            self._read = [variable.read_value() for variable in variables]
            return
        with self._tf.device(self._device):
            self._gradients = [
                [self._variable(f"gradient{server}_{i}", n) for i, n in enumerate(counts)]
                for server, counts in enumerate(self._layout.counts)
            ]
        self._meeting = self._pass("meet", [])
        pairs = zip(chain.from_iterable(self._variables), chain.from_iterable(self._gradients), strict=True)
        pushes = [self._push(variable, gradient) for variable, gradient in pairs]
        with self._tf.control_dependencies([self._pass("pushed", pushes)]):
            self._pulls = [[self._pull(variable) for variable in variables] for variables in self._variables]

    def _variable(self, name: str, elements: int) -> Any:
        kind = getattr(self._tf, self._layout.dtype)
        zeros = self._tf.compat.v1.zeros_initializer()
        return self._tf.compat.v1.get_variable(name, [elements], kind, zeros, use_resource=True)

    def _push(self, variable: Any, gradient: Any) -> Any:
        with self._tf.device(self._device):
            value = gradient.read_value()
        with self._tf.device(variable.device):
            return variable.assign_add(value, read_value=False)

    def _pull(self, variable: Any) -> Any:
        with self._tf.device(variable.device):
            value = variable.read_value()
        with self._tf.device(self._device):
            return self._tf.identity(value)

    def _pass(self, name: str, after: Sequence[Any]) -> Any:
        """Return an operation that ends when every worker has reached it: each sends every other worker a token."""
        tf = self._tf
        workers = range(len(self._layout.workers))
        this_worker = self._layout.workers.index(self._rank)
        with tf.device("/job:ps/task:0"), tf.control_dependencies(after):
            queues = [tf.compat.v1.FIFOQueue(4 * len(workers), tf.int32, shapes=[()], shared_name=f"{name}{worker}") for worker in workers]
            sent = [queues[worker].enqueue(0) for worker in workers if worker != this_worker]
            with tf.control_dependencies(sent):
                taken = [queues[this_worker].dequeue_many(len(workers) - 1)] if sent else []
        return tf.group(*after, *sent, *taken)

    def _fill(self, gradients: Sequence[NDArray[Any]]) -> None:
        """Copy the gradients to this worker's variables, and prepare the calls of a worker."""
        if self._is_server:
            return
        for variables, values in zip(self._gradients, gradients, strict=True):
            start = 0
            for variable in variables:
                end = start + int(variable.shape[0])
                fed = {variable.initializer.inputs[1]: values[start:end]}
                self._run(partial(self._session.run, variable.initializer, fed))
                start = end
        self._step = self._session.make_callable(self._pulls)
        self._meet = self._session.make_callable(self._meeting)

    def step(self) -> list[list[NDArray[Any]]]:
        """Push the gradients, wait for all workers' pushes, and pull. Return the pulled arrays by server and variable. For workers."""
        pulled: list[list[NDArray[Any]]] = self._run(self._step)
        return pulled

    def meet(self) -> None:
        """Return when all workers have called it. For workers."""
        self._run(self._meet)

    def sums(self) -> list[NDArray[Any]]:
        """Return the values of this server's variables. For servers."""
        values: list[NDArray[Any]] = self._run(lambda: self._session.run(self._read))
        return values

    def clear(self) -> None:
        """Set this server's variables to zero. For servers."""
        self._run(lambda: self._session.run(self._clear))

    def close(self, world: World) -> None:
        """Free the variables of all ranks. All ranks must call it. TensorFlow's servers run until the process ends."""
        world.allgather(None, "leaving the parameter servers")
        self._session.close()
        if self._rank == self._layout.servers[0]:
            self._tf.compat.v1.Session.reset(self._server.target, [self._container])
        world.allgather(None, "freeing the parameter servers' variables")

    def _run(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._tf.errors.OpError as error:
            raise RunFailed(f"tensorflow's parameter server failed: {type(error).__name__}: {_error_line(error)}") from error


def _error_line(error: Any) -> str:
    """Return the line with the error. In a graph it is the line after the place where the node was created."""
    lines = [line for line in str(error.message).splitlines() if line.strip()] or [""]
    if not lines[0].startswith("Graph execution error"):
        return lines[0]
    return next((line for line in lines[1:] if not line.startswith((" ", "\t", "Detected at node", "node "))), lines[0])


def free_ports(world: World, phase: str) -> list[str]:
    """Return by rank "address:port", with a port that is free there now. All ranks must call it. Errors name the phase."""
    with listen_at(world.me.address) as listener:
        ports = world.allgather(listener.getsockname()[1], phase)
    return [f"{bracketed(member.address)}:{port}" for member, port in zip(world.members, ports, strict=True)]


_MAJOR = 2
_CONFIG = "TF_CONFIG"
_GET = "pip install 'collbench[tensorflow]'"
_REDUCED = ("bfloat16", "float16", "float32", "float64", "int32", "int64")  # attr T of CollectiveReduceV2, TensorFlow 2.21
_FIRST_KEY = 1_000_000  # of groups; the strategy counts its own keys up from 1
_LARGEST = 2**31  # of a message: the limit of protobuf, which gRPC uses
_ORDERED = ("allgather", "alltoall")


class TensorFlowBackend(HostBackend):
    """The backend tensorflow: raw collective operations between the tasks of one MultiWorkerMirroredStrategy.

    TensorFlow has no barrier for these operations, and ends pending work when the connection to a task ends.
    """

    name = api = "tensorflow"
    local_path = "loopback"
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Return whether TensorFlow 2 is installed. Does not import it (that takes seconds)."""
        if find_spec("tensorflow") is None:
            return Unavailable.because(NotInstalled("tensorflow", _GET))
        version = _installed_version()
        if version is None:
            fix = f"remove or rename that package, then {_GET}"
            return Unavailable.because(WrongBuild("tensorflow", "(version unknown)", "was not installed by pip", fix))
        if version.partition(".")[0] != str(_MAJOR):
            return Unavailable.because(UnknownVersion("tensorflow", version, f"{_MAJOR}.x", _GET))
        return Available(f"TensorFlow {version}, {HINT} over gRPC")

    def open(self, world: World, settings: Settings) -> None:
        """Import TensorFlow and form a cluster of all ranks, on free ports.

        Raises UsageError if the import fails or TF_CONFIG is set, RunFailed if no cluster can be formed.
        """
        if _CONFIG in os.environ:
            raise UsageError(f"{_CONFIG} is set, and tensorflow's cluster is formed of the ranks of this launch: unset it")
        tf = self._tf = load_tensorflow()
        self.rank, self.ranks = world.rank, world.size
        self._groups = 0
        tf.config.set_visible_devices([], "GPU")  # else the strategy would use every GPU, and all of its memory
        try:
            self._strategy = _strategy(tf, world)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise RunFailed(f"tensorflow cannot form a cluster of these {world.size} ranks: {str(error).splitlines()[0]}") from error

    def communicator(self, ranks: Sequence[int]) -> Handle:
        """Return a new key for a group. TensorFlow orders the group's ranks by task."""
        self._groups += 1
        return Handle(self._tf, _FIRST_KEY + self._groups, len(ranks))

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> TensorFlowBinding:
        """Return the binding with a tensor over the send memory."""
        assert isinstance(buffers, Buffers)
        return TensorFlowBinding(buffers, group, slot)

    def supports(self, operation: Operation, case: Case) -> Reason | None:
        """Return why TensorFlow does not support the operation, type or reduction, or would end the process; else None."""
        if operation.name == "reducescatter":
            note = "CollectiveReduceScatterV2 has no ring algorithm on CPUs and ends the process"
            return OperationUnsupported("tensorflow", operation.name, note=note)
        if case.redop and case.redop not in REDOPS:
            return RedopUnsupported("tensorflow", case.redop)
        if operation.reduces and case.dtype.name not in _REDUCED:
            return DtypeUnsupported("tensorflow", case.dtype.name)
        if case.dtype.size == 1:
            return DtypeUnsupported("tensorflow", case.dtype.name, "send", "its collectives")
        return self._unsupported_group(operation, case)

    def _unsupported_group(self, operation: Operation, case: Case) -> Reason | None:
        """Return why these groups, or messages of this size, are not supported; else None."""
        if operation.name in _ORDERED and reorders_ranks(case, self.ranks):
            return GroupOrderUnsupported("tensorflow", operation.name)
        parts = 1 if operation.name == "broadcast" else group_size(operation, case, self.ranks)  # of the largest message between two ranks
        if -(-case.size_bytes // parts) >= _LARGEST:
            return LimitExceeded("gRPC of tensorflow", "per message", _LARGEST - 1, bytes=True)
        return None

    def parameter_servers(self, world: World, layout: ServerLayout, gradients: Sequence[Any]) -> ParameterServers:
        """Start TensorFlow's own servers and return this rank's part. All ranks must call it. Raises RunFailed if they do not start."""
        return ParameterServers(self._tf, world, layout, gradients)

    def versions(self) -> Mapping[str, str]:
        """Return TensorFlow's version, the algorithm and transport of its collectives, and its threads (0: one per core)."""
        threading = self._tf.config.threading
        threads = f"{threading.get_inter_op_parallelism_threads()} inter, {threading.get_intra_op_parallelism_threads()} intra"
        return {"tensorflow": self._tf.__version__, "tensorflow_communication": f"{HINT} over gRPC", "tensorflow_threads": threads}

    def close(self) -> None:
        """Do nothing: only the end of the process stops TensorFlow's server."""


def _installed_version() -> str | None:
    """Return the version, under any package name (tensorflow-cpu …); None if pip did not install it."""
    try:
        return version("tensorflow")
    except PackageNotFoundError:
        names = packages_distributions().get("tensorflow")  # reads the file list of every package
        return version(names[0]) if names else None


def _strategy(tf: Any, world: World) -> Any:
    """Return a MultiWorkerMirroredStrategy of all ranks, which starts this rank's server. Keep it as long as collectives are used."""
    tasks = free_ports(world, "opening tensorflow: the ports of its servers")
    os.environ[_CONFIG] = json.dumps({"cluster": {"worker": tasks}, "task": {"type": "worker", "index": world.rank}})
    try:
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    finally:
        del os.environ[_CONFIG]
