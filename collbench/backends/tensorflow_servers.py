"""TensorFlow's own parameter servers: a tf.distribute.Server per rank, variables on the servers' devices, a session per worker.

A worker's step is one run of its graph: assign_add of its gradients to every server's variables, tokens through queues on the first
server until all workers have done so (as SyncReplicasOptimizer's), then identity of the variables on its own device, fetched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from collbench.addresses import bracketed, listen_at
from collbench.errors import RunFailed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from collbench.control.world import World

_number = count(1)


@dataclass(frozen=True)
class Layout:
    """servers, workers   ranks of the job; counts: by server the elements of each of its variables; dtype: of all of them"""

    servers: tuple[int, ...]
    workers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]
    dtype: str


class ParameterServers:
    """This rank's part. All ranks make it together. What they run raises RunFailed with TensorFlow's word.

    step     pushes, waits for all workers' pushes, pulls; what was pulled, by server and variable (workers)
    meet     returns when all workers have come (workers)
    sums     what this server's variables hold (servers)
    clear    sets this server's variables to zero (servers)
    """

    def __init__(self, tf: Any, world: World, layout: Layout, gradients: Sequence[NDArray[Any]]) -> None:
        """`gradients`: by server one array of all its elements, at workers; () at servers."""
        self._tf, self._layout, self._rank = tf, layout, world.rank
        self._container = f"training{next(_number)}"
        self._servers = world.rank in layout.servers
        self._begin(_cluster(world, layout))
        graph = tf.Graph()
        with graph.as_default(), tf.compat.v1.container(self._container):
            self._lay(gradients)
        # The default would be that of the strategy, which sees its own tasks alone.
        self._session = tf.compat.v1.Session(self._server.target, graph, tf.compat.v1.ConfigProto())
        if self._servers:
            self.clear()
        world.agree(None, "making the parameter servers' variables")
        self._fill(gradients)
        world.agree(None, "filling the workers' gradients")

    def _begin(self, cluster: dict[str, list[str]]) -> None:
        job = "ps" if self._servers else "worker"
        task = (self._layout.servers if self._servers else self._layout.workers).index(self._rank)
        self._own = f"/job:{job}/task:{task}"
        try:
            self._server = self._tf.distribute.Server(self._tf.train.ClusterSpec(cluster), job_name=job, task_index=task)
        except self._tf.errors.OpError as error:
            raise RunFailed(f"tf.distribute.Server does not start at {cluster[job][task]}: {_first(error)}") from error

    def _lay(self, gradients: Sequence[NDArray[Any]]) -> None:
        """The variables, and what is run on them."""
        self._variables = [self._of(server) for server in range(len(self._layout.servers))]
        if self._servers:
            mine = self._variables[self._layout.servers.index(self._rank)]
            self._clear, self._read = [one.initializer for one in mine], [one.read_value() for one in mine]
            return
        with self._tf.device(self._own):
            self._sources = [[self._variable(f"gradient{s}_{i}", n) for i, n in enumerate(of)] for s, of in enumerate(self._layout.counts)]
        self._meeting = self._pass("meet", [])
        both = zip(chain.from_iterable(self._variables), chain.from_iterable(self._sources), strict=True)
        pushes = [self._push(target, source) for target, source in both]
        with self._tf.control_dependencies([self._pass("pushed", pushes)]):
            self._pulls = [[self._pull(one) for one in of] for of in self._variables]

    def _of(self, server: int) -> list[Any]:
        with self._tf.device(f"/job:ps/task:{server}"):
            return [self._variable(f"model{server}_{i}", n) for i, n in enumerate(self._layout.counts[server])]

    def _variable(self, name: str, elements: int) -> Any:
        kind = getattr(self._tf, self._layout.dtype)
        zeros = self._tf.compat.v1.zeros_initializer()
        return self._tf.compat.v1.get_variable(name, [elements], kind, zeros, use_resource=True)

    def _push(self, target: Any, source: Any) -> Any:
        with self._tf.device(self._own):
            gradient = source.read_value()
        with self._tf.device(target.device):
            return target.assign_add(gradient, read_value=False)

    def _pull(self, variable: Any) -> Any:
        with self._tf.device(variable.device):
            value = variable.read_value()
        with self._tf.device(self._own):
            return self._tf.identity(value)

    def _pass(self, name: str, after: Sequence[Any]) -> Any:
        """An operation that ends when every worker has come so far: each gives every other one a token."""
        tf, workers, me = self._tf, range(len(self._layout.workers)), self._layout.workers.index(self._rank)
        with tf.device("/job:ps/task:0"), tf.control_dependencies(after):
            queues = [tf.compat.v1.FIFOQueue(4 * len(workers), tf.int32, shapes=[()], shared_name=f"{name}{worker}") for worker in workers]
            given = [queues[worker].enqueue(0) for worker in workers if worker != me]
            with tf.control_dependencies(given):
                taken = [queues[me].dequeue_many(len(workers) - 1)] if given else []
        return tf.group(*after, *given, *taken)

    def _fill(self, gradients: Sequence[NDArray[Any]]) -> None:
        """The gradients into this worker's variables, and what a worker calls made ready."""
        if self._servers:
            return
        for of, whole in zip(self._sources, gradients, strict=True):
            at = 0
            for source in of:
                elements = int(source.shape[0])
                fed = {source.initializer.inputs[1]: whole[at : at + elements]}
                self._run(partial(self._session.run, source.initializer, fed))
                at += elements
        self._step, self._meet = self._session.make_callable(self._pulls), self._session.make_callable(self._meeting)

    def step(self) -> list[list[NDArray[Any]]]:
        """See above."""
        pulled: list[list[NDArray[Any]]] = self._run(self._step)
        return pulled

    def meet(self) -> None:
        """See above."""
        self._run(self._meet)

    def sums(self) -> list[NDArray[Any]]:
        """See above."""
        held: list[NDArray[Any]] = self._run(lambda: self._session.run(self._read))
        return held

    def clear(self) -> None:
        """See above."""
        self._run(lambda: self._session.run(self._clear))

    def close(self, world: World) -> None:
        """Frees the variables of all. All ranks call; TensorFlow's servers stay until the process ends."""
        world.agree(None, "leaving the parameter servers")
        self._session.close()
        if self._rank == self._layout.servers[0]:
            self._tf.compat.v1.Session.reset(self._server.target, [self._container])
        world.agree(None, "freeing the parameter servers' variables")

    def _run(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except self._tf.errors.OpError as error:
            raise RunFailed(f"tensorflow's parameter server failed: {type(error).__name__}: {_first(error)}") from error


def _first(error: Any) -> str:
    """The line that says what is wrong: of an error in a graph the one that follows where the node was made."""
    lines = [line for line in str(error.message).splitlines() if line.strip()] or [""]
    told = [line for line in lines[1:] if not line.startswith((" ", "\t", "Detected at node", "node "))]
    return (told or lines)[0] if lines[0].startswith("Graph execution error") else lines[0]


def free_ports(world: World, what: str) -> list[str]:
    """By rank "address:port" of a port that is free there now; all ranks call. `what` names the phase."""
    address = world.me.address
    with listen_at(address) as held:
        ports = world.agree(held.getsockname()[1], what)
    return [f"{bracketed(one.address)}:{port}" for one, port in zip(world.members, ports, strict=True)]


def _cluster(world: World, layout: Layout) -> dict[str, list[str]]:
    places = free_ports(world, "starting tensorflow's servers: their ports")
    return {"ps": [places[rank] for rank in layout.servers], "worker": [places[rank] for rank in layout.workers]}
