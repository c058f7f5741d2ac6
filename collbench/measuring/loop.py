"""Run and time programs of library calls: in C where every call is native, else in Python. Both stop at the first error."""

from __future__ import annotations

import ctypes
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from collbench.backends.clock import Clock, DeviceClock
from collbench.errors import RunFailed
from collbench.native.library import DeviceStruct, FailureStruct, NativeSlots, library
from collbench.operations.program import MAX_ARGS, Call, NativeCall, Program
from collbench.stats.median import middle

# Samples of work that calls only enqueue on streams: events before and after it, read after the streams are empty; see loop.c.

_NOT_READY = 600  # cuda.h
_IN_PROGRESS = 7  # nccl.h
_IN_DEVICE = -2
_IN_LIBRARY = -3
_LATE = -4
_SHARE = 0.75  # of the deadline: leaves time to find the missing ranks and to end in order before the watchdog ends the process


class Failure(msgspec.Struct, frozen=True):
    """The point where a sample failed: the iteration, the call's error code, and the call's position.

    The position is -1 in the synchronization; loop.c defines the values below that.
    """

    code: int
    call: int
    iteration: int


class FailedCall(Exception):
    """A sample failed; `failure` has the position of the call and its error code."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class OnDevice:
    """The timing loop for a program of calls that only enqueue work on a GPU.

    enqueue_s   the host's seconds per sample of the last run, [n]
    """

    def __init__(self, clock: DeviceClock, program: Program, sync: Program | None, progress: ctypes.c_int64) -> None:
        self._clock = clock
        self._progress = progress
        self._program = NativeSlots(program)
        self._sync = NativeSlots(sync) if sync else None
        self._arrays = [(ctypes.c_uint64 * len(words))(*words) for words in (clock.streams, clock.starts, clock.ends, clock.comms)]
        self._deadline_s = _SHARE * clock.deadline_s
        self.enqueue_s: NDArray[np.float64] = np.empty(0)

    def run(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        """Return the seconds of n samples of `batch` iterations each, [ranks this process drives × n]. Raises FailedCall."""
        samples = np.zeros((len(self._clock.streams), n))
        enqueue = np.zeros(n, np.int64)
        native = library()
        if native is None:
            self._run_python(samples, enqueue, batch, first)
        else:
            self._run_native(native, samples, enqueue, batch, first)
        self.enqueue_s = np.multiply(enqueue, 1e-9, dtype=np.float64)
        samples *= 1e-9
        return samples

    def _run_native(self, native: ctypes.CDLL, samples: NDArray[np.float64], enqueue: NDArray[np.int64], batch: int, first: int) -> None:
        n = samples.shape[1]
        failure = FailureStruct()
        struct = self._struct()
        done = native.collbench_run_on_device(
            ctypes.byref(struct), self._program.structs, ctypes.c_int64(self._program.n), self._sync.structs if self._sync else None,
            ctypes.c_int64(n), ctypes.c_int64(batch), ctypes.c_int64(first), ctypes.c_void_p(enqueue.ctypes.data),
            ctypes.c_void_p(samples.ctypes.data), ctypes.byref(self._progress), ctypes.byref(failure),
        )  # fmt: skip
        if done < n:
            raise FailedCall(Failure(int(failure.code), int(failure.call), int(failure.iteration)))

    def _struct(self) -> DeviceStruct:
        clock = self._clock
        streams, starts, ends, comms = self._arrays
        return DeviceStruct(
            n=len(clock.streams), streams=streams, starts=starts, ends=ends, comms=comms,
            n_comms=len(clock.comms) if clock.async_error else 0, record=clock.record, query=clock.query, elapsed=clock.elapsed,
            async_error=clock.async_error, deadline_ns=int(self._deadline_s * 1e9),
        )  # fmt: skip

    def _run_python(self, samples: NDArray[np.float64], enqueue: NDArray[np.int64], batch: int, first: int) -> None:
        """Run the samples in Python, where no compiler was available at installation."""
        clock = self._clock
        record = _function(clock.record, 2)
        elapsed = _function(clock.elapsed, 3)
        turn = first
        for i in range(samples.shape[1]):
            if self._sync:
                _call_all(self._sync, 0, -1, i * batch)
            _each(record, zip(clock.starts, clock.streams, strict=True), i * batch)
            start = time.monotonic_ns()
            for j in range(batch):
                _call_all(self._program, turn % self._program.n, 0, i * batch + j)
                turn += 1
            enqueue[i] = time.monotonic_ns() - start
            _each(record, zip(clock.ends, clock.streams, strict=True), i * batch)
            self._wait(i * batch)
            for rank, events in enumerate(zip(clock.starts, clock.ends, strict=True)):
                ms = ctypes.c_float()
                _each(elapsed, [(ctypes.addressof(ms), *events)], i * batch)
                samples[rank, i] = ms.value * 1e6
            self._progress.value = (i + 1) * batch - 1

    def _wait(self, iteration: int) -> None:
        end = time.monotonic() + self._deadline_s
        query = _function(self._clock.query, 1)
        for stream in self._clock.streams:
            while (code := query(ctypes.c_uint64(stream))) == _NOT_READY:
                if error := self._async_error():
                    raise FailedCall(Failure(error, _IN_LIBRARY, iteration))
                if time.monotonic() > end:
                    raise FailedCall(Failure(0, _LATE, iteration))
                time.sleep(0)
            if code:
                raise FailedCall(Failure(code, _IN_DEVICE, iteration))

    def _async_error(self) -> int:
        if not self._clock.async_error:
            return 0
        query = _function(self._clock.async_error, 2)
        error = ctypes.c_int()
        for comm in self._clock.comms:
            code = query(ctypes.c_uint64(comm), ctypes.c_uint64(ctypes.addressof(error)))
            if code or error.value not in (0, _IN_PROGRESS):
                return int(code or error.value)
        return 0

    def explain(self, failure: Failure) -> str | None:
        """Return why enqueued work failed or did not complete; None if a call itself failed."""
        clock = self._clock
        why = {_IN_DEVICE: clock.device_error, _IN_LIBRARY: clock.library_error}.get(failure.call)
        if why:
            return f"failed after it had been enqueued: {why(failure.code)}"
        return f"has not completed within {self._deadline_s:g} s" if failure.call == _LATE else None

    def remedy(self, failure: Failure) -> str:
        """Return what else the user can do about work that has not completed."""
        return f"; or raise --timeout, of which this is {100 * _SHARE:g} %" if failure.call == _LATE else ""


def _function(address: int, words: int) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words)(address)


def _each(function: Callable[..., int], arguments: Sequence[Sequence[int]] | zip[tuple[int, int]], iteration: int) -> None:
    for words in arguments:
        code = function(*map(ctypes.c_uint64, words))
        if code:
            raise FailedCall(Failure(code, _IN_DEVICE, iteration))


def _call_all(slots: NativeSlots, slot: int, place: int, iteration: int) -> None:
    """Run every call of a slot. `place` is the position of the first one in the program, -1 in the synchronization."""
    for i in range(slots.structs[slot].n):
        call = slots.structs[slot].calls[i]
        code = _function(call.call, len(call.words))(*map(ctypes.c_uint64, call.words))
        if code:
            raise FailedCall(Failure(code, place if place < 0 else i, iteration))


class CallFailed(RunFailed):
    """A call of the library returned an error. The message names the call and the iteration."""


class Unfinished(RunFailed):
    """Enqueued work failed, or did not end within its deadline. The library cannot be used any more."""


class Timed(msgspec.Struct, frozen=True):
    """The calls that a loop times, and the calls around them.

    program    the calls of one iteration, per buffer slot
    sync       the calls before each sample, or None
    meeting    the calls before the first sample of a run, where there are none before each
    clock      the backend's clock
    progress   a word with the last complete iteration, for the watchdog
    parting    the calls after the last sample of a run, for ranks that have no other calls but must not leave early; or None
    """

    program: Program
    sync: Program | None
    clock: Clock | DeviceClock
    progress: ctypes.c_int64
    meeting: Program | None = None
    parting: Program | None = None

    @property
    def all_native(self) -> bool:
        """Return whether the C loop, if it was built, can run all of these calls."""
        stamps = isinstance(self.clock, DeviceClock) or self.clock.native
        return stamps and all(program.native for program in (self.program, self.sync, self.meeting, self.parting) if program)


WRAP_NS = 2**40  # start stamps are stored modulo 18 minutes, exact in a float64; ranks are never so far apart


class TimedLoop(ABC):
    """What is timed, ready to run repeatedly.

    iterations       how many a turn holds
    native           whether C takes the stamps; could_be_native: or would if the native loop had been built
    starts_ns        when each sample of the last run began, [ranks driven here × n], CLOCK_MONOTONIC modulo 2^40; NaN on other clocks
    enqueue_s        the host's median seconds per iteration of the last run, where calls only enqueue work; else None
    iterations_run   iterations since the loop was made
    """

    iterations: int = 1
    native: bool = False
    could_be_native: bool = False
    starts_ns: NDArray[np.float64]
    enqueue_s: float | None = None
    iterations_run: int = 0

    @abstractmethod
    def run(self, n: int, batch: int = 1, slot: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of n samples of `batch` turns each, [ranks this process drives × n]. slot: the only buffers to use."""


class Loop(TimedLoop):
    """A program of calls that is ready to run repeatedly. It is not thread-safe."""

    def __init__(self, timed: Timed) -> None:
        self._timed = timed
        self.native = timed.all_native and library() is not None
        self.could_be_native = timed.all_native
        self.iterations = timed.program.iterations
        self.starts_ns: NDArray[np.float64] = np.empty((0, 0))
        self._next = 0
        # the calls around a run's samples, on the same clock
        self._meeting, self._parting = (
            Loop(replace(timed, program=program, sync=None, meeting=None, parting=None)) if program else None
            for program in (timed.meeting, timed.parting)
        )
        self._device = OnDevice(timed.clock, timed.program, timed.sync, timed.progress) if isinstance(timed.clock, DeviceClock) else None
        if self._device:
            return
        if self.native:
            self._slots = NativeSlots(timed.program)
            self._sync = NativeSlots(timed.sync) if timed.sync else None
        else:
            self._functions = [_functions(slot, timed.program) for slot in timed.program.slots]
            self._before = _functions(timed.sync.slots[0], timed.sync) if timed.sync else []

    def run(self, n: int, batch: int = 1, slot: int | None = None) -> NDArray[np.float64]:
        """Return the seconds of n samples of `batch` turns of a slot each, [ranks this process drives × n].

        With `slot` only that buffer slot is used; by default the slots take turns. Raises CallFailed with the call, its
        error code and the iteration; Unfinished for enqueued work.
        """
        first = self._next if slot is None else slot
        if self._meeting:
            self._meeting.run(1)
        try:
            samples = self._run_once(n, batch, first)
        finally:  # other ranks that wait for this one in `parting` are not informed of the failure here
            if self._parting:
                self._parting.run(1)
        self.iterations_run += n * batch * self.iterations
        if slot is None:
            self._next = first + n * batch
        return samples

    def _run_once(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        if self._device:
            return self._run_on_device(self._device, n, batch, first)
        return self._run_native(n, batch, first) if self.native else self._run_python(n, batch, first)

    def _run_on_device(self, device: OnDevice, n: int, batch: int, first: int) -> NDArray[np.float64]:
        clock = self._timed.clock
        assert isinstance(clock, DeviceClock)
        try:
            samples = device.run(n, batch, first)
        except FailedCall as broken:
            failure = broken.failure
            why = device.explain(failure)
            if why:
                names = " and ".join(dict.fromkeys(name for name in self._timed.program.calls() if not name.startswith("ncclGroup")))
                raise Unfinished(clock.stuck(f"{names} {why} (iteration {failure.iteration})") + device.remedy(failure)) from None
            raise self._failed(failure.call, failure.iteration, self._explained(failure.call, failure.code)) from None
        self.enqueue_s = middle(np.sort(device.enqueue_s)) / (batch * self.iterations) if n else None
        self.starts_ns = np.full_like(samples, np.nan)
        return samples

    def _explained(self, call: int, code: int) -> str:
        """Return the text of an error code, from the library that made the call."""
        failed = self._timed.program if call >= 0 or self._timed.sync is None else self._timed.sync
        return failed.explain(code)

    def _run_native(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        start = np.zeros(n, np.int64)
        elapsed = np.zeros(n, np.int64)
        failure = FailureStruct()
        native = library()
        assert native is not None
        done = native.collbench_run(
            self._slots.structs, ctypes.c_int64(self._slots.n), self._sync.structs if self._sync else None,
            ctypes.c_int64(n), ctypes.c_int64(batch), ctypes.c_int64(first),
            ctypes.c_void_p(start.ctypes.data), ctypes.c_void_p(elapsed.ctypes.data),
            ctypes.byref(self._timed.progress), ctypes.byref(failure),
        )  # fmt: skip
        if done < n:
            raise self._failed(int(failure.call), int(failure.iteration), self._explained(int(failure.call), int(failure.code)))
        self.starts_ns = np.mod(start, WRAP_NS).astype(np.float64)[np.newaxis, :]
        return np.multiply(elapsed, 1e-9, dtype=np.float64)[np.newaxis, :]

    def _run_python(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        clock = self._timed.clock
        assert not isinstance(clock, DeviceClock)
        progress = self._timed.progress
        slots = self._functions
        queued = clock.queued
        starts = []
        ends = []
        host_s = []
        turn = first
        for i in range(n):
            self._call(self._before, i * batch, in_sync=True)
            starts.append(clock.stamp())
            began = time.monotonic() if queued else 0.0  # outside the stamps, so that a sample does not include it
            for j in range(batch):
                self._call(slots[turn % len(slots)], i * batch + j)
                turn += 1
                progress.value = i * batch + j
            if queued:
                host_s.append(time.monotonic() - began)
            ends.append(clock.stamp())
        self.enqueue_s = middle(np.sort(host_s)) / (batch * self.iterations) if host_s else None
        samples = clock.elapsed(starts, ends)
        comparable = clock.native and len(samples) == 1
        self.starts_ns = np.mod(starts, WRAP_NS).astype(np.float64)[np.newaxis, :] if comparable else np.full_like(samples, np.nan)
        return samples

    def _call(self, functions: list[Callable[[], object]], iteration: int, in_sync: bool = False) -> None:
        done = 0
        try:
            for function in functions:
                function()
                done += 1
        except Exception as error:
            raise self._failed(-1 if in_sync else done, iteration, f"{type(error).__name__}: {error}") from error

    def _failed(self, call: int, iteration: int, why: str) -> CallFailed:
        names = list(self._timed.program.calls())
        name = names[call] if 0 <= call < len(names) else "the synchronisation"
        return CallFailed(f"{name} failed in iteration {iteration}: {why}")


def exit_skew(starts_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the seconds between the first and the last rank to begin each sample, [n].

    starts_ns is `Loop.starts_ns` of ranks that share a clock.
    """
    later = np.mod(starts_ns - starts_ns[0] + WRAP_NS / 2, WRAP_NS) - WRAP_NS / 2
    skew: NDArray[np.float64] = (later.max(axis=0) - later.min(axis=0)) * 1e-9
    return skew


def _functions(slot: tuple[Call, ...], program: Program) -> list[Callable[[], object]]:
    return [_from_native(call, program) if isinstance(call, NativeCall) else call.function for call in slot]


def _from_native(call: NativeCall, program: Program) -> Callable[[], None]:
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * MAX_ARGS)(call.pointer)
    padded = [*call.args, *[0] * (MAX_ARGS - len(call.args))]
    words = [ctypes.c_uint64(word % 2**64) for word in padded]

    def run() -> None:
        code = function(*words)
        if code:
            raise OSError(program.explain(code))

    return run
