"""Runs programs and stamps them: in C where every call is native, else in Python. Both stop at the first error."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from collbench.backends.clock import Clock, DeviceClock
from collbench.errors import RunFailed
from collbench.measure.device import Broken, OnDevice
from collbench.native.library import FailureStruct, NativeSlots, library
from collbench.operations.program import MAX_WORDS, Call, NativeCall, Program


class CallFailed(RunFailed):
    """A call of the library returned an error; the sentence names the call and the iteration."""


class Unfinished(RunFailed):
    """Work that a call had enqueued failed, or has not ended within its deadline: the library cannot be used any more."""


@dataclass(frozen=True)
class Timed:
    """What a loop is to time.

    program    the calls of one iteration, per buffer slot
    sync       the calls before each sample, or None
    meeting    the calls before the first sample of a run, where there are none before each
    clock      the backend's clock
    progress   a word that says how far the loop is, for the watchdog
    parting    the calls after the last sample of a run, for ranks that have nothing to call and yet must stay; or None
    """

    program: Program
    sync: Program | None
    clock: Clock | DeviceClock
    progress: ctypes.c_int64
    meeting: Program | None = None
    parting: Program | None = None

    @property
    def all_native(self) -> bool:
        """Whether the C loop can run all of it, where it was built."""
        stamps = isinstance(self.clock, DeviceClock) or self.clock.native
        return stamps and all(program.native for program in (self.program, self.sync, self.meeting, self.parting) if program)


_WRAP_NS = 2**40  # start stamps are kept modulo 18 minutes: exact in a float64, and ranks are never so far apart


class Loop:
    """A program made ready to run again and again. Not for several threads.

    starts_ns       when each sample of the last run began, [ranks driven here × n], CLOCK_MONOTONIC modulo 2^40; NaN on other clocks
    enqueue_s       the host's median seconds per iteration of the last run, where calls only enqueue work; else None
    iterations_run  iterations since the loop was made
    """

    def __init__(self, timed: Timed) -> None:
        self._timed = timed
        self.native = timed.all_native and library() is not None
        self.could_be_native = timed.all_native
        self.iterations = timed.program.iterations
        self.starts_ns: NDArray[np.float64] = np.empty((0, 0))
        self.enqueue_s: float | None = None
        self.iterations_run = 0
        self._next = 0
        self._meeting, self._parting = (_alone(timed, program) for program in (timed.meeting, timed.parting))
        self._prepare()

    def _prepare(self) -> None:
        timed = self._timed
        self._device = OnDevice(timed.clock, timed.program, timed.sync, timed.progress) if isinstance(timed.clock, DeviceClock) else None
        if self._device:
            return
        if self.native:
            self._slots, self._sync = NativeSlots(timed.program), NativeSlots(timed.sync) if timed.sync else None
        else:
            self._functions = [_functions(slot, timed.program) for slot in timed.program.slots]
            self._before = _functions(timed.sync.slots[0], timed.sync) if timed.sync else []

    def run(self, n: int, batch: int = 1, slot: int | None = None) -> NDArray[np.float64]:
        """Seconds of n samples of `batch` turns of a slot each, [ranks this process drives × n]; `slot` keeps to one buffer slot's turn.

        Raises CallFailed naming the call, its error code and the iteration; Unfinished for work that a call had enqueued.
        """
        first = self._next if slot is None else slot
        if self._meeting:
            self._meeting.run(1)
        try:
            samples = self._run_once(n, batch, first)
        finally:  # whoever waits for this rank there learns nothing of a failure here
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
        except Broken as broken:
            failure, why = broken.failure, device.explain(broken.failure)
            if why:
                names = " and ".join(dict.fromkeys(name for name in self._timed.program.calls() if not name.startswith("ncclGroup")))
                raise Unfinished(clock.stuck(f"{names} {why} (iteration {failure.iteration})") + device.remedy(failure)) from None
            raise self._failed(failure.call, failure.iteration, self._explained(failure.call, failure.code)) from None
        self.enqueue_s = float(np.median(device.enqueue_s)) / (batch * self.iterations) if n else None
        self.starts_ns = np.full_like(samples, np.nan)
        return samples

    def _explained(self, call: int, code: int) -> str:
        """An error code in the words of the library whose call failed."""
        failed = self._timed.program if call >= 0 or self._timed.sync is None else self._timed.sync
        return failed.explain(code)

    def _run_native(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        start, elapsed, failure = np.zeros(n, np.int64), np.zeros(n, np.int64), FailureStruct()
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
        self.starts_ns = np.mod(start, _WRAP_NS).astype(np.float64)[np.newaxis, :]
        return np.multiply(elapsed, 1e-9, dtype=np.float64)[np.newaxis, :]

    def _run_python(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        clock, progress, slots, starts, ends = self._timed.clock, self._timed.progress, self._functions, [], []
        assert not isinstance(clock, DeviceClock)
        queued, host_s, turn = clock.queued, [], first
        for i in range(n):
            self._call(self._before, i * batch, in_sync=True)
            starts.append(clock.stamp())
            began = time.monotonic() if queued else 0.0  # between the stamps: nothing that a sample need not hold
            for j in range(batch):
                self._call(slots[turn % len(slots)], i * batch + j)
                turn += 1
                progress.value = i * batch + j
            if queued:
                host_s.append(time.monotonic() - began)
            ends.append(clock.stamp())
        self.enqueue_s = float(np.median(host_s)) / (batch * self.iterations) if host_s else None
        samples = clock.elapsed(starts, ends)
        comparable = clock.native and len(samples) == 1
        self.starts_ns = np.mod(starts, _WRAP_NS).astype(np.float64)[np.newaxis, :] if comparable else np.full_like(samples, np.nan)
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


def _alone(timed: Timed, program: Program | None) -> Loop | None:
    """The calls around a run's samples, on the same clock."""
    return Loop(replace(timed, program=program, sync=None, meeting=None, parting=None)) if program else None


def exit_skew(starts_ns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds between the first and the last rank to begin each sample, [n], from `Loop.starts_ns` of ranks that share a clock."""
    later = np.mod(starts_ns - starts_ns[0] + _WRAP_NS / 2, _WRAP_NS) - _WRAP_NS / 2
    skew: NDArray[np.float64] = (later.max(axis=0) - later.min(axis=0)) * 1e-9
    return skew


def _functions(slot: tuple[Call, ...], program: Program) -> list[Callable[[], object]]:
    return [_from_native(call, program) if isinstance(call, NativeCall) else call.function for call in slot]


def _from_native(call: NativeCall, program: Program) -> Callable[[], None]:
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * MAX_WORDS)(call.pointer)
    padded = [*call.words, *[0] * (MAX_WORDS - len(call.words))]
    words = [ctypes.c_uint64(word % 2**64) for word in padded]

    def run() -> None:
        code = function(*words)
        if code:
            raise OSError(program.explain(code))

    return run
