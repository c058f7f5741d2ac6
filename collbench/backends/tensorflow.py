"""TensorFlow's own collectives, as MultiWorkerMirroredStrategy uses them: the ring over gRPC, on host memory.

A timed call is one eager operation on a tensor over our own memory, made before, up to its result in our receive memory: that last copy
is what `.numpy()` makes, too. Each call has the price of TensorFlow's eager dispatch, and of a round over gRPC even inside a host.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from collbench.backends.backend import Available, Settings, Unavailable
from collbench.backends.group import Group
from collbench.backends.host import HostBackend
from collbench.backends.memory import AnyBuffers, Buffers
from collbench.backends.tensorflow_binding import HINT, REDOPS, STEPS, Handle, TensorFlowBinding, largest_message
from collbench.backends.tensorflow_import import load_tensorflow
from collbench.backends.tensorflow_servers import Layout, ParameterServers, free_ports
from collbench.errors import RunFailed, UsageError
from collbench.operations.cell import Cell
from collbench.operations.operation import Operation, Reason
from collbench.operations.program import Program

if TYPE_CHECKING:
    from collbench.control.world import World

_MAJOR = 2
_CONFIG = "TF_CONFIG"
_GET = "pip install -c constraints.txt 'collbench[tensorflow]'"
_REDUCED = ("bfloat16", "float16", "float32", "float64", "int32", "int64")  # attr T of CollectiveReduceV2, TensorFlow 2.21
_FIRST_KEY = 1_000_000  # of groups: the strategy's own count up from 1
_LARGEST = 2**31  # of a message: protobuf's, in which gRPC carries it
_ORDERED = ("allgather", "alltoall")


class TensorFlowBackend(HostBackend):
    """Raw collective operations between the tasks of one MultiWorkerMirroredStrategy."""

    name = api = "tensorflow"
    local_path = "loopback"
    steps = STEPS

    @classmethod
    def probe(cls) -> Available | Unavailable:
        """Whether a TensorFlow 2 is installed; does not import it (that takes seconds)."""
        if find_spec("tensorflow") is None:
            return Unavailable("tensorflow is not installed", _GET)
        found = _installed()
        if found is None:
            return Unavailable("pip knows nothing of the package tensorflow that Python finds", f"remove or rename that, then {_GET}")
        if found.partition(".")[0] != str(_MAJOR):
            return Unavailable(f"tensorflow {found} is installed, and this backend knows {_MAJOR}.x alone", _GET)
        return Available(f"TensorFlow {found}, {HINT} over gRPC")

    def open(self, world: World, settings: Settings) -> None:
        """Imports TensorFlow and forms a cluster of all ranks, on ports that they choose now.

        Raises UsageError for an installation that cannot be imported, and where TF_CONFIG speaks of another cluster; RunFailed where
        none is formed.
        """
        if _CONFIG in os.environ:
            raise UsageError(f"{_CONFIG} is set, and tensorflow's cluster is formed of the ranks of this launch: unset it")
        tf = self._tf = load_tensorflow()
        self.rank, self.ranks, self._groups = world.rank, world.size, 0
        tf.config.set_visible_devices([], "GPU")  # the strategy would take every GPU, and all of its memory
        try:
            self._strategy = _strategy(tf, world)
        except (tf.errors.OpError, RuntimeError, ValueError) as error:
            raise RunFailed(f"tensorflow forms no cluster of these {world.size} ranks: {str(error).splitlines()[0]}") from error

    def communicator(self, ranks: Sequence[int]) -> Handle:
        """A group is a number that its members name; TensorFlow orders them by task."""
        self._groups += 1
        return Handle(self._tf, _FIRST_KEY + self._groups, len(ranks))

    def binding(self, group: Group, buffers: AnyBuffers, slot: int) -> TensorFlowBinding:
        """A tensor over the send memory."""
        assert isinstance(buffers, Buffers)
        return TensorFlowBinding(buffers, group, slot)

    def supports(self, operation: Operation, cell: Cell) -> Reason | None:
        """What the operations' types and reductions are; never what would end the process."""
        if operation.name == "reducescatter":
            return "CollectiveReduceScatterV2 of tensorflow has no ring on CPUs and ends the process that asks for it"
        if cell.redop and cell.redop not in REDOPS:
            return f"tensorflow has no {cell.redop}"
        if operation.reduces and cell.dtype.name not in _REDUCED:
            return f"tensorflow reduces no {cell.dtype.name} tensors"
        if cell.dtype.size == 1:
            return f"tensorflow's collectives carry no elements of 8 bits ({cell.dtype.name})"
        return self._unfit(operation, cell)

    def _unfit(self, operation: Operation, cell: Cell) -> Reason | None:
        """Why these groups, or so many bytes, cannot be."""
        if operation.name in _ORDERED and cell.split and any(sorted(group) != list(group) for group in cell.split.groups(self.ranks)):
            return f"tensorflow orders the parts of {operation.name} by rank, and this group is in another order"
        if largest_message(operation, cell, self.ranks) >= _LARGEST:
            return "tensorflow sends such a part as one message, and gRPC carries none of 2 GiB"
        return None

    def parameter_servers(self, world: World, layout: Layout, gradients: Sequence[Any]) -> ParameterServers:
        """TensorFlow's own servers and this rank's part in them; all ranks call. Raises RunFailed where they do not start."""
        return ParameterServers(self._tf, world, layout, gradients)

    def sync(self, group: Group) -> Program | None:
        """None: TensorFlow has no barrier of its own for these."""
        return None

    def abort(self, why: str) -> None:
        """TensorFlow ends what is pending when the connection to a task ends; it has no call for that."""

    def versions(self) -> Mapping[str, str]:
        """TensorFlow, how its collectives go, and its threads (0: as many as there are cores)."""
        threading = self._tf.config.threading
        threads = f"{threading.get_inter_op_parallelism_threads()} inter, {threading.get_intra_op_parallelism_threads()} intra"
        return {"tensorflow": self._tf.__version__, "tensorflow_communication": f"{HINT} over gRPC", "tensorflow_threads": threads}

    def close(self) -> None:
        """The process's end stops TensorFlow's server; there is no other way."""


def _installed() -> str | None:
    """The version, by whatever name it was installed (tensorflow-cpu …); None where pip did not."""
    try:
        return version("tensorflow")
    except PackageNotFoundError:
        names = packages_distributions().get("tensorflow")  # reads every package's list of files
        return version(names[0]) if names else None


def _strategy(tf: Any, world: World) -> Any:
    """A MultiWorkerMirroredStrategy of all ranks, which starts this one's server; it must live as long as collectives are called."""
    tasks = free_ports(world, "opening tensorflow: the ports of its servers")
    os.environ[_CONFIG] = json.dumps({"cluster": {"worker": tasks}, "task": {"type": "worker", "index": world.rank}})
    try:
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    finally:
        del os.environ[_CONFIG]
