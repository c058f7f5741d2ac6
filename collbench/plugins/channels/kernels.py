"""`collbench kernels`: run kernels on each GPU and between neighboring GPUs, and compare the rates with the links.

Each kernel of verify.cu, bandwidth.cu and sync.cu is timed, then checked element by element.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from collbench.columns import NOTHING, PERCENT, RATE, column, figure, value_columns
from collbench.device.buffers import checker_of, kernels_of, prove
from collbench.device.gpu import OpenGpu, Stream, gpu_count, open_peer
from collbench.device.kernels import Kernels
from collbench.device.present import cupy_runtime
from collbench.device.unavailable import gpu_obstacle
from collbench.errors import FINE, RunFailed, UsageError
from collbench.machine.peak.ceiling import TOLERANCE
from collbench.measuring.link_ceilings import link_between
from collbench.measuring.probing import together_or_alone
from collbench.operations.data import PERIOD
from collbench.records import Record
from collbench.report.frame import Column, Frame, Line, TextLayout
from collbench.report.screen import PlainScreen, wrapped
from collbench.stats.median import Median, median
from collbench.units import format_bytes, format_percent, format_rate, format_size, format_time

# Timing of short work on a GPU by events, in batches that a latch holds until the whole batch is queued.
#
# The method is nvbandwidth's: close the latch, hold the stream, queue 4 warm-up runs, an event, 16 runs, an event; open the latch. So the
# work between the events runs without gaps, even if the host launches it slowly. nvbandwidth uses 3 batches; more allow an interval.

_BATCHES, _FEWEST_BATCHES = 15, 6  # six samples are the fewest with a 95 % interval
_RUNS, _RUNS_PER_WARM_UP = 16, 4
_BUDGET_S = 2.0  # for all batches together; within it they may be fewer or shorter
_HELD_NS = 10 * 10**9
_RELEASED = 1


class Stopwatch:
    """A stream of one GPU, with the events that time its work."""

    def __init__(self, gpu: OpenGpu, kernels: Kernels) -> None:
        from cupy.cuda import get_elapsed_time

        self.gpu = gpu
        self.stream = gpu.stream()
        self._kernels = kernels
        self._begin = gpu.event()
        self._end = gpu.event()
        self._words = gpu.pinned(16).view(np.uint64)  # the latch, and how the hold ended
        self._elapsed_ms: Callable[..., float] = get_elapsed_time

    def samples(self, run: Callable[[], None]) -> tuple[float, ...]:
        """Return seconds per run of work that `run` queues on `self.stream`: one sample per batch, the mean of its runs.

        Raises RunFailed if the host could not queue a batch while the stream was held.
        """
        self._batch(run, 1, held=False)  # CUDA loads a kernel at its first launch, which must not happen while a stream is held
        # once with the latch open, so that its kernel is loaded
        self._words[:] = (1, 0)
        self._hold()
        self._wait()
        once = self._batch(run, 1, held=True)
        share = once * (1 + 1 / _RUNS_PER_WARM_UP)
        runs = int(min(max(_BUDGET_S / _BATCHES / share, 1), _RUNS)) if share > 0 else _RUNS
        batches = int(min(max(_BUDGET_S / (runs * share), _FEWEST_BATCHES), _BATCHES)) if share > 0 else _BATCHES
        return tuple(self._batch(run, runs, held=True) for _ in range(batches))

    def _hold(self) -> None:
        latch = self._words.ctypes.data
        self._kernels.hold(self.stream, latch, _HELD_NS, latch + 8)

    def _batch(self, run: Callable[[], None], runs: int, *, held: bool) -> float:
        """Return seconds per run of `runs` runs, after a quarter as many that are not timed."""
        self._words[:] = 0
        if held:
            self._hold()
        try:
            for _ in range(-(-runs // _RUNS_PER_WARM_UP)):
                run()
            with self.gpu.use():
                self._begin.cupy.record(self.stream.cupy)
            for _ in range(runs):
                run()
            with self.gpu.use():
                self._end.cupy.record(self.stream.cupy)
        finally:
            self._words[0] = 1
        self._wait()
        if held and self._words[1] != _RELEASED:
            raise RunFailed(f"GPU {self.gpu.index} ({self.gpu.name}): {runs} launches were not queued within {_HELD_NS / 1e9:g} s")
        return self._elapsed_ms(self._begin.cupy, self._end.cupy) / 1e3 / runs

    def _wait(self) -> None:
        with self.gpu.use():
            self.stream.synchronize()


GRAIN = 16  # sizes are multiples of this
_LEAST = 1024
_DEFAULT_SIZE = 512 << 20  # nvbandwidth's
_SMALLEST = 1 << 20
_ARRAYS = 3  # of a triad
_SPARE = 64 << 20  # not allocated: for tables, sums, and the driver


class Arrays:
    """The test arrays `a`, `b` and `c` (addresses of `size` bytes each) on one GPU. Raises MemoryError."""

    def __init__(self, gpu: OpenGpu, size: int) -> None:
        self.gpu = gpu
        self.size = size
        self.kernels = kernels_of(gpu)
        self.watch = Stopwatch(gpu, self.kernels)
        self.stream = self.watch.stream
        self.checker = checker_of(gpu, self.stream)
        self._held = [gpu.allocate(size) for _ in range(_ARRAYS)]
        self.a, self.b, self.c = (array.address for array in self._held)


def fitting_size(gpus: Sequence[OpenGpu], requested: int | None) -> int:
    """Return the bytes of each array: the requested or default size, halved until three arrays fit into every GPU.

    Raises UsageError for a size that does not fit, or that no kernel supports.
    """
    if requested is not None and (requested % GRAIN or requested < _LEAST):
        raise UsageError(f"--size {requested}: a size is a multiple of {GRAIN} bytes, which a thread moves at a time, and {_LEAST} or more")
    free, gpu = min(((gpu.free_bytes(), gpu) for gpu in gpus), key=itemgetter(0))
    room = (free - _SPARE) // _ARRAYS
    size = requested or _DEFAULT_SIZE
    while requested is None and room < size > _SMALLEST:
        size //= 2
    if room < size:
        raise UsageError(
            f"{_ARRAYS} arrays of {format_size(size)} do not fit in GPU {gpu.index} ({gpu.name}), where {format_bytes(free)} is free: "
            "use a smaller --size, or end the processes that use its memory"
        )
    return size


ABOVE = "above_bound"


class KernelFigure(Record, frozen=True, kw_only=False):
    """The result of one kernel of cuda_kernels/, timed and checked."""

    kernel: Annotated[str, column('Its name: copy, peer_read; "copy_engine" is the driver\'s own copy between two GPUs.')]
    gpus: Annotated[
        tuple[int, ...], column("The GPUs by CUDA's index: the one that runs the kernel, then the one with the memory that it accesses.")
    ]
    size_bytes: Annotated[int, column("N of cuda_kernels/README.md; 0 for a latency.")] = 0
    moved_bytes: Annotated[int, column("What a run moves: read plus written, or over the link in one direction; 0 for a latency.")] = 0
    seconds: Annotated[
        tuple[float, ...],
        column("Of one run, one round trip or one load, in the order measured; empty: see `why`.", key="samples_s"),
    ] = ()
    floor_bytes_per_s: Annotated[float | None, column("The rate that the hardware allows; missing if unknown or not applicable.")] = None
    floor: Annotated[str, column("The name and source of that rate, or why there is none.")] = ""
    wrong: Annotated[int | None, column("Wrong elements (of `read_memory`: sums; of a chase: ends); missing: not checked.")] = None
    why: Annotated[str | None, column("Why it was not measured.")] = None

    @property
    def median(self) -> Median:
        """Return the median time in seconds."""
        return median(np.array(self.seconds))

    @property
    @figure("The number of samples.", after="moved_bytes")
    def n(self) -> int:
        """Return the number of samples."""
        return self.median.n

    @property
    @figure("How many independent samples they are worth.", after="n")
    def n_eff(self) -> float | None:
        """Return how many independent samples they are worth."""
        return self.median.n_eff

    @property
    @figure("The median time with its 95 % confidence interval.", after="n_eff")
    def time_s(self) -> dict[str, float | None] | None:
        """Return the median time with its interval; None without samples."""
        middle = self.median
        return {"p50": middle.value, "ci_low": middle.ci_low, "ci_high": middle.ci_high} if middle.n else None

    @property
    @figure("The median rate.", after="seconds")
    def bytes_per_s(self) -> float | None:
        """Return the median rate; None for a kernel that moves nothing, or without samples."""
        return self.moved_bytes / self.median.value if self.moved_bytes and self.median.value else None

    @property
    @figure("Its 95 % confidence interval.", after="bytes_per_s", unit=RATE)
    def bytes_per_s_ci(self) -> list[float | None] | None:
        """Return the interval of the rate; None without a rate."""
        return list(self.interval) if self.bytes_per_s else None

    @property
    @figure("The rate as a share of that floor.", after="floor", unit=PERCENT)
    def percent_of_floor(self) -> float | None:
        """Return the percentage of the floor; None if the kernel is faster than the floor allows."""
        return 100 * self.bytes_per_s / self.floor_bytes_per_s if self.bytes_per_s and self.floor_bytes_per_s and not self.flags else None

    @property
    @figure("above_bound: faster than the floor allows.", after="percent_of_floor")
    def flags(self) -> list[str]:
        """Return the flags of the figure."""
        rate = self.bytes_per_s
        return [ABOVE] if rate and self.floor_bytes_per_s and rate > TOLERANCE * self.floor_bytes_per_s else []

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """Return the interval in the unit of the figure: bytes per second, or seconds."""
        time_s = self.median
        if time_s.ci_low and time_s.ci_high and self.moved_bytes:
            return self.moved_bytes / time_s.ci_high, self.moved_bytes / time_s.ci_low
        return time_s.ci_low, time_s.ci_high

    def as_json(self) -> dict[str, Any]:
        """Return the figure for programs: rates in bytes per second, times in seconds of one run; unknown values are null."""
        return {value.name: value.value(self) for value in value_columns(KernelFigure)}


_LINE = 256  # bytes between loads, more than a cache line of any GPU
_CHASE_WORD = 8
_STEPS = 2000  # loads of one run


def chain_over(n_bytes: int) -> NDArray[np.uint64]:
    """Return indices of 64-bit words, one per cache line, that visit all of n_bytes in random order and repeat."""
    order = np.random.default_rng(0).permutation(max(1, n_bytes // _LINE))
    chain = np.zeros(len(order) * _LINE // _CHASE_WORD, np.uint64)
    chain[order * (_LINE // _CHASE_WORD)] = np.roll(order, -1) * (_LINE // _CHASE_WORD)
    return chain


def chased(arrays: Arrays, address: int, chain: NDArray[Any], gpus: tuple[int, ...]) -> KernelFigure:
    """Return the seconds of one load along `chain`, which is stored at `address`."""
    result = arrays.gpu.allocate(2 * _CHASE_WORD)
    seconds = arrays.watch.samples(lambda: arrays.kernels.pointer_chase(arrays.stream, address, 0, _STEPS, result.address))
    end = int(arrays.checker.read(result.address, _CHASE_WORD).view(np.uint64)[0])
    expected = 0
    for _ in range(_STEPS):
        expected = int(chain[expected])
    loads = tuple(run_s / _STEPS for run_s in seconds)
    over = f"one load after the other, over {format_bytes(chain.nbytes)}"
    return KernelFigure("pointer_chase", gpus, seconds=loads, floor=over, wrong=int(end != expected))


_BEYOND_CACHE = 4  # arrays so many times the size of the level-2 cache come almost completely from memory
_SCALE, _WORD = 3.0, 0x0123456789ABCDEF
_DELAY_NS = 10**6
Values = NDArray[Any]


class _Kernel(msgspec.Struct, frozen=True):
    """How GPU `x` moves N bytes, in its own memory or to and from that of a peer `y`.

    Arrays b and c of both hold the same tables. `expected` has from these the contents of array `a` afterwards: of the `targets`.
    moves: how often it moves N bytes in its own memory.
    """

    name: str
    run: Callable[[Arrays, Arrays], None]
    expected: Callable[[Values, Values], Values] = lambda b, c: b
    moves: int = 1
    dtype: str = "f4"
    targets: Callable[[Arrays, Arrays], tuple[Arrays, ...]] = lambda x, y: (x,)


_MEMORY_KERNELS = (
    _Kernel("write_memory", lambda x, _: x.kernels.write(x.stream, x.a, x.size, _WORD),
            lambda b, c: np.array([_WORD, _WORD ^ (2**64 - 1)], np.uint64), 1, "u8"),
    _Kernel("copy", lambda x, _: x.kernels.copy(x.stream, x.a, x.b, x.size), moves=2, dtype="u8"),
    _Kernel("triad", lambda x, _: x.kernels.triad(x.stream, x.a, x.b, x.c, x.size, scale=_SCALE), lambda b, c: b + _SCALE * c, 3, "f8"),
    _Kernel("reduce_copy", lambda x, _: x.kernels.reduce_copy(x.stream, x.a, x.b, x.c, x.size), lambda b, c: b + c, 3),
)  # fmt: skip


def memory_figures(arrays: Arrays) -> Iterator[KernelFigure]:
    """Yield one result per kernel as it is measured. Raises RunFailed if the checker does not detect a flipped bit."""
    prove(arrays.gpu, arrays.stream)
    yield from _fill_and_verify(arrays)
    yield _read(arrays)
    for kernel in _MEMORY_KERNELS:
        yield _figure(arrays, kernel.name, kernel.moves, *_timed(kernel, arrays, arrays))
    size = max(GRAIN, min(arrays.size, arrays.gpu.l2_bytes) // GRAIN * GRAIN)
    seconds = arrays.watch.samples(lambda: arrays.kernels.flush(arrays.stream, arrays.a, size))
    yield KernelFigure("flush", (arrays.gpu.index,), size, 2 * size, seconds, *_floor(arrays, size))
    chain = chain_over(min(arrays.size, _BEYOND_CACHE * arrays.gpu.l2_bytes or arrays.size))  # in the cache if it fits there
    arrays.gpu.upload(arrays.a, chain, arrays.stream)
    yield chased(arrays, arrays.a, chain, (arrays.gpu.index,))
    seconds = arrays.watch.samples(lambda: arrays.kernels.delay(arrays.stream, _DELAY_NS))
    floor = f"{_DELAY_NS // 1000} µs were asked for: so true is the clock of events"
    yield KernelFigure("delay", (arrays.gpu.index,), seconds=seconds, floor=floor)


def _figure(arrays: Arrays, kernel: str, moves: int, seconds: tuple[float, ...], wrong: int | None) -> KernelFigure:
    rate, words = _floor(arrays, arrays.size)
    return KernelFigure(kernel, (arrays.gpu.index,), arrays.size, moves * arrays.size, seconds, rate, words, wrong)


def _floor(arrays: Arrays, n_bytes: int) -> tuple[float | None, str]:
    """Return the memory's rate and its source where memory limits, or None and the reason."""
    cache = arrays.gpu.l2_bytes
    if n_bytes < _BEYOND_CACHE * cache:
        return None, f"arrays smaller than {_BEYOND_CACHE} times the level-2 cache ({format_size(cache)}): partly the cache's rate"
    if arrays.gpu.memory_rate is None:
        return None, "the driver does not report the memory's clock and width"
    return arrays.gpu.memory_rate, "memory clock × width × 2"


def _timed(kernel: _Kernel, x: Arrays, y: Arrays) -> tuple[tuple[float, ...], int]:
    """Return the seconds of a kernel, and its number of wrong elements."""
    both = tuple(dict.fromkeys((x, y)))
    b = digits(kernel.dtype, 1)
    c = digits(kernel.dtype, 2)
    for arrays in both:
        arrays.checker.fill(arrays.b, arrays.size, b)
        arrays.checker.fill(arrays.c, arrays.size, c)
    _settle(*both)
    seconds = x.watch.samples(lambda: kernel.run(x, y))
    for arrays in both:
        arrays.checker.poison(arrays.a, arrays.size)
    _settle(*both)
    kernel.run(x, y)
    _settle(*both)
    return seconds, sum(arrays.checker.verify(arrays.a, arrays.size, kernel.expected(b, c), 0)[0] for arrays in kernel.targets(x, y))


def _settle(*all_arrays: Arrays) -> None:
    for arrays in all_arrays:
        arrays.checker.settle()


def _fill_and_verify(arrays: Arrays) -> Iterator[KernelFigure]:
    values = digits("u8", 1)
    table = arrays.gpu.allocate(values.nbytes)
    arrays.gpu.upload(table.address, values, arrays.stream)
    seconds = arrays.watch.samples(lambda: arrays.kernels.fill(arrays.stream, arrays.a, arrays.size, table.address, table.n_bytes))
    wrong, _ = arrays.checker.verify(arrays.a, arrays.size, values, 0)
    yield _figure(arrays, "fill", 1, seconds, wrong)
    result = arrays.gpu.allocate(16)
    where = (arrays.stream, arrays.a, arrays.size, table.address, table.n_bytes)
    seconds = arrays.watch.samples(lambda: arrays.kernels.verify(*where, width=8, tolerance=0, result_address=result.address))
    arrays.checker.corrupt(arrays.a, arrays.size - 1, 0x80)
    detected = arrays.checker.verify(arrays.a, arrays.size, values, 0)
    if detected != (wrong + 1, arrays.size // 8 - 1):
        gpu = f"GPU {arrays.gpu.index} ({arrays.gpu.name})"
        raise RunFailed(f"the checker of {gpu} does not detect a flipped bit in the last element: {detected}")
    yield _figure(arrays, "verify", 1, seconds, wrong)


def _read(arrays: Arrays) -> KernelFigure:
    values = digits("u8", 1)
    sums = arrays.gpu.allocate(arrays.kernels.sums_bytes)
    arrays.checker.fill(arrays.b, arrays.size, values)
    seconds = arrays.watch.samples(lambda: arrays.kernels.read(arrays.stream, arrays.b, arrays.size, sums.address))
    total = int(arrays.checker.read(sums.address, sums.n_bytes).view(np.uint64).sum())
    whole, rest = divmod(arrays.size // 8, len(values))
    expected_total = (whole * int(values.sum()) + int(values[:rest].sum())) % 2**64
    return _figure(arrays, "read_memory", 1, seconds, int(total != expected_total))


def digits(dtype: str, seed: int) -> Values:
    """Return one period of small whole numbers: their sums are exact in every type."""
    return np.random.default_rng(seed).integers(1, 1000, PERIOD).astype(dtype)


_ROUNDS, _LAUNCHES = 1000, 15
_TIMEOUT_NS = 2 * 10**9
_CHAIN = 64 << 20  # bytes of a peer's memory that a chase visits


def _copy_engine(x: Arrays, y: Arrays) -> None:
    with x.gpu.use():
        cupy_runtime().memcpyPeerAsync(x.a, x.gpu.index, y.b, y.gpu.index, x.size, x.stream.address)


_PEERS_KERNELS = (
    _Kernel("peer_read", lambda x, y: x.kernels.peer_read(x.stream, x.a, y.b, x.size)),
    _Kernel("peer_write", lambda x, y: x.kernels.peer_write(x.stream, y.a, x.b, x.size), targets=lambda x, y: (y,)),
    _Kernel("peer_both", lambda x, y: x.kernels.peer_both(x.stream, x.a, y.b, y.a, x.b, n_bytes=x.size), targets=lambda x, y: (x, y)),
    _Kernel("reduce_copy", lambda x, y: x.kernels.reduce_copy(x.stream, x.a, x.b, y.c, x.size), lambda b, c: b + c),
    _Kernel("copy_engine", _copy_engine),
)
_LATENCIES = ("pingpong", "pointer_chase")


def peer_figures(x: Arrays, y: Arrays) -> Iterator[KernelFigure]:
    """Yield one result per kernel of GPU x on the memory of GPU y; n/a with the reason without peer access."""
    gpus = (x.gpu.index, y.gpu.index)
    if not (open_peer(x.gpu, y.gpu) and open_peer(y.gpu, x.gpu)):
        why = f"GPUs {gpus[0]} and {gpus[1]} cannot reach each other's memory (cudaDeviceCanAccessPeer)"
        yield from without_peer(why, gpus)
        return
    for kernel in _PEERS_KERNELS:
        seconds, wrong = _timed(kernel, x, y)
        yield KernelFigure(kernel.name, gpus, x.size, x.size, seconds, wrong=wrong)
    yield pingpong(x, y)
    chain = chain_over(min(y.size, _CHAIN))
    y.gpu.upload(y.a, chain, y.stream)
    yield chased(x, y.a, chain, gpus)


def without_peer(why: str, gpus: tuple[int, ...]) -> Iterator[KernelFigure]:
    """Yield the same results as not measured, with the reason."""
    yield from (KernelFigure(name, gpus, why=why) for name in (*(kernel.name for kernel in _PEERS_KERNELS), *_LATENCIES))


def pingpong(x: Arrays, y: Arrays) -> KernelFigure:
    """Return the round-trip time of a word between two GPUs, or two streams of one; n/a where the sides do not run at the same time."""
    gpus = tuple(dict.fromkeys((x.gpu.index, y.gpu.index)))
    streams = (x.stream, y.stream if y is not x else x.gpu.stream())
    seconds: list[float] = []
    for _ in range(_LAUNCHES):
        rounds, elapsed_ns = _played(x, y, streams)
        if rounds < _ROUNDS:
            why = f"the two sides made {rounds} of {_ROUNDS} round trips in {_TIMEOUT_NS / 1e9:g} s"
            return KernelFigure("pingpong", gpus, why=why)
        seconds.append(elapsed_ns / 1e9 / rounds)
    return KernelFigure("pingpong", gpus, seconds=tuple(seconds), floor="round trip of a flag", wrong=0)


def _played(x: Arrays, y: Arrays, streams: tuple[Stream, Stream]) -> tuple[int, int]:
    """Return (round trips, their nanoseconds) as measured by the starting side."""
    flags = (x.a, y.a + 256)  # different places, also if x is y
    results = (x.b, y.b + 256)
    for arrays, flag in zip((x, y), flags, strict=True):
        arrays.gpu.upload(flag, np.zeros(1, np.uint64), arrays.stream)
    for side, arrays in enumerate((x, y)):
        arrays.kernels.pingpong(
            streams[side], flags[side], flags[1 - side], rounds=_ROUNDS, starts=side == 0, timeout_ns=_TIMEOUT_NS, result=results[side]
        )
    for arrays, stream in zip((x, y), streams, strict=True):
        with arrays.gpu.use():
            stream.synchronize()
    rounds, elapsed_ns = x.gpu.download(results[0], 16).view(np.uint64).tolist()
    return rounds, elapsed_ns


_TIMEOUT_S = 300.0  # how long the other ranks of a launch wait for one kernel of rank 0
_GOING_ON = -1
_WHAT = "the kernels of rank 0"
_NOT_OVER_LINKS = frozenset({"pingpong", "pointer_chase"})


def measure_kernels(env: Mapping[str, str], size: int | None, show: KernelsWriter) -> int:
    """Measure this host's GPUs at rank 0. Return exit code 0; all ranks return at the same time.

    size: bytes of each array; None: chosen by the free memory. Raises UsageError without a GPU, or if the size does not fit;
    RunFailed if the result of a kernel is wrong.
    """
    with together_or_alone(env, _TIMEOUT_S) as world:
        if world.rank:  # the other ranks wait, since they must not disturb the GPUs
            code = _GOING_ON
            while code == _GOING_ON:
                code = world.broadcast(FINE, _WHAT)
            return code
        wrong: list[KernelFigure] = []
        try:
            gpus = _open(env)
            fitting = fitting_size(gpus, size)
            show.start(gpus, fitting)
            for result in figures(gpus, fitting):
                show.figure(result)
                if result.wrong:
                    wrong.append(result)
                world.broadcast(_GOING_ON, _WHAT)
            show.end()
        except MemoryError as error:
            raise UsageError(f"{error}: use a smaller --size, or free memory of the GPU") from error
        if wrong:
            where = " and ".join(map(str, wrong[0].gpus))
            raise RunFailed(
                f"{wrong[0].kernel} on GPU {where}: {wrong[0].wrong} elements are wrong: the GPU, its memory or the link is faulty "
                "(see 'nvidia-smi -q' for ECC errors, 'dmesg' for Xid errors)"
            )
        return world.broadcast(FINE, _WHAT)


def _open(env: Mapping[str, str]) -> list[OpenGpu]:
    obstacle = gpu_obstacle(env)
    if obstacle is not None:
        raise UsageError(f"no GPU to run kernels on: {obstacle.render()}")
    return [OpenGpu(index) for index in range(gpu_count())]


def figures(gpus: Sequence[OpenGpu], size: int) -> Iterator[KernelFigure]:
    """Yield the figure of every kernel on every GPU, then between each GPU and the next one, the last to the first."""
    arrays = [Arrays(gpu, size) for gpu in gpus]
    for of_gpu in arrays:
        yield from memory_figures(of_gpu)
        yield pingpong(of_gpu, of_gpu)
    if len(arrays) < 2:
        yield from without_peer("needs a second GPU, but one is visible", (gpus[0].index,))
        return
    from collbench.machine.here import this_machine

    machine = this_machine()
    for x, y in zip(arrays, arrays[1:] + arrays[:1] * (len(arrays) > 2), strict=False):
        link = link_between(machine, x.gpu.bus_id, y.gpu.bus_id)
        floor = f"{link.name} ({link.source})" if link.source else link.name
        for result in peer_figures(x, y):
            over_link = result.kernel not in _NOT_OVER_LINKS
            yield result.replace(floor_bytes_per_s=link.bytes_per_s, floor=floor) if over_link else result


class KernelsWriter:
    """Writes the figures of `collbench kernels` to a screen; `format` is table or json."""

    def __init__(self, format: str, screen: PlainScreen, width: int | None = None) -> None:
        self._format = format
        self._screen = screen
        self._above = False
        self._names: dict[int, str] = {}
        self._layout = TextLayout(kernel_frame([]), width)

    def start(self, gpus: Sequence[OpenGpu], size: int) -> None:
        """Write the GPUs and the titles."""
        self._names = {gpu.index: gpu.name for gpu in gpus}
        if self._format == "json":
            return
        rates = {gpu.index: "" if gpu.memory_rate is None else f", memory {format_rate(gpu.memory_rate)} GB/s" for gpu in gpus}
        self._write(*(
            f"GPU {gpu.index}: {gpu.name} ({gpu.arch}{rates[gpu.index]}, level-2 cache {format_size(gpu.l2_bytes)})" for gpu in gpus
        ), f"arrays of {format_size(size)}")  # fmt: skip
        self._screen.data(Line(self._layout.heading(), "head"))

    def figure(self, figure: KernelFigure) -> None:
        """Write the line of a figure."""
        if self._format == "json":
            values = {**figure.as_json(), "gpu_names": [self._names[gpu] for gpu in figure.gpus]}
            self._screen.data(Line(json.dumps(values, ensure_ascii=False, allow_nan=False)))
            return
        self._above |= bool(figure.flags)
        for line in self._layout.lines(figure):
            self._screen.data(line)

    def end(self) -> None:
        """Write what the words mean."""
        if self._format == "json":
            return
        self._write("GB/s: 1e9 bytes per second; copies count what they read and what they write; medians of one launch", style="foot")
        if self._above:
            self._write(
                f"{ABOVE}: faster than the floor allows: a cache took part, or the rate was read wrongly; no percentage", style="foot"
            )

    def _write(self, *texts: str, style: str = "") -> None:
        for line in wrapped([Line(text, style) for text in texts], self._layout.width):
            self._screen.data(line)


def kernel_frame(figures: Sequence[KernelFigure]) -> Frame[KernelFigure]:
    """Return the table of kernels. An n/a line has the reason in place of the last four columns."""
    return Frame(_KERNELS, figures, style=_kernel_style, instead=lambda figure: f"n/a ({figure.why})" if figure.why else None)


def _kernel_style(figure: KernelFigure) -> str:
    if figure.why:
        return "na"
    if figure.wrong:
        return "wrong"
    return "doubtful" if figure.flags else ""


def _kernel_value(figure: KernelFigure) -> str:
    """Return "4380 of 4800 GB/s (91 %)", or the time in µs of a kernel that moves nothing."""
    if not figure.moved_bytes:
        return f"{format_time(figure.median.value)} µs"
    rate = figure.bytes_per_s
    if figure.floor_bytes_per_s is None or rate is None:
        return f"{format_rate(rate or 0.0)} GB/s"
    rates = f"{format_rate(rate)} of {format_rate(figure.floor_bytes_per_s)} GB/s"
    return f"{rates} {ABOVE}" if figure.flags else f"{rates} ({format_percent(100 * rate / figure.floor_bytes_per_s)})"


def _kernel_interval(figure: KernelFigure) -> str:
    shown = format_rate if figure.moved_bytes else format_time
    low, high = figure.interval
    return NOTHING if low is None or high is None else f"{shown(low)}–{shown(high)}"


# Each line is printed as soon as it is measured, so the widths are fixed.
_KERNELS: tuple[Column[KernelFigure], ...] = (
    Column("", "GPU", lambda figure: "→".join(map(str, figure.gpus)), least=5),
    Column("", "kernel", lambda figure: figure.kernel, least=13),
    Column("", "size", lambda figure: format_size(figure.size_bytes) if figure.size_bytes else "", least=8),
    Column("", "GB/s, or µs", _kernel_value, drop=1, least=27),
    Column("", "95 % interval", _kernel_interval, drop=3, least=15),
    Column("", "wrong", lambda figure: NOTHING if figure.wrong is None else str(figure.wrong), drop=2, least=5),
    Column("", "floor", lambda figure: figure.floor, drop=4),
)
