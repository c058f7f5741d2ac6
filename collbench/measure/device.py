"""Samples of work that calls only enqueue on streams: events before and after it, read when the streams are empty; see loop.c."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collbench.backends.clock import DeviceClock
from collbench.native.library import DeviceStruct, FailureStruct, NativeSlots, library
from collbench.operations.program import Program

_NOT_READY, _IN_PROGRESS = 600, 7  # cuda.h, nccl.h
_IN_DEVICE, _IN_LIBRARY, _LATE = -2, -3, -4
_SHARE = 0.75  # of the deadline: there must be time to ask who is missing, and to give up in order, before the watchdog ends the process
Words = ctypes.Array[ctypes.c_uint64]


@dataclass(frozen=True)
class Failure:
    """Where a sample broke off: the call's code and place (-1 in the synchronisation, less: see loop.c), and the iteration."""

    code: int
    call: int
    iteration: int


class Broken(Exception):
    """A sample broke off; `failure` says where."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class OnDevice:
    """Runs a program whose calls only enqueue work.

    enqueue_s   the host's seconds per sample of the last run, [n]
    """

    def __init__(self, clock: DeviceClock, program: Program, sync: Program | None, progress: ctypes.c_int64) -> None:
        self._clock, self._progress = clock, progress
        self._program, self._sync = NativeSlots(program), NativeSlots(sync) if sync else None
        self._arrays = [_words(values) for values in (clock.streams, clock.starts, clock.ends, clock.comms)]
        self._deadline_s = _SHARE * clock.deadline_s
        self.enqueue_s: NDArray[np.float64] = np.empty(0)

    def run(self, n: int, batch: int, first: int) -> NDArray[np.float64]:
        """Seconds of n samples of `batch` iterations each, [ranks this process drives × n]. Raises Broken."""
        samples, enqueue = np.zeros((len(self._clock.streams), n)), np.zeros(n, np.int64)
        native = library()
        if native is None:
            self._run_python(samples, enqueue, batch, first)
        else:
            self._run_native(native, samples, enqueue, batch, first)
        self.enqueue_s = np.multiply(enqueue, 1e-9, dtype=np.float64)
        samples *= 1e-9
        return samples

    def _run_native(self, native: ctypes.CDLL, samples: NDArray[np.float64], enqueue: NDArray[np.int64], batch: int, first: int) -> None:
        n, failure = samples.shape[1], FailureStruct()
        struct = self._struct()
        done = native.collbench_run_on_device(
            ctypes.byref(struct), self._program.structs, ctypes.c_int64(self._program.n), self._sync.structs if self._sync else None,
            ctypes.c_int64(n), ctypes.c_int64(batch), ctypes.c_int64(first), ctypes.c_void_p(enqueue.ctypes.data),
            ctypes.c_void_p(samples.ctypes.data), ctypes.byref(self._progress), ctypes.byref(failure),
        )  # fmt: skip
        if done < n:
            raise Broken(Failure(int(failure.code), int(failure.call), int(failure.iteration)))

    def _struct(self) -> DeviceStruct:
        clock, (streams, starts, ends, comms) = self._clock, self._arrays
        return DeviceStruct(
            n=len(clock.streams), streams=streams, starts=starts, ends=ends, comms=comms,
            n_comms=len(clock.comms) if clock.async_error else 0, record=clock.record, query=clock.query, elapsed=clock.elapsed,
            async_error=clock.async_error, deadline_ns=int(self._deadline_s * 1e9),
        )  # fmt: skip

    def _run_python(self, samples: NDArray[np.float64], enqueue: NDArray[np.int64], batch: int, first: int) -> None:
        """The same without a compiler at install."""
        clock, turn = self._clock, first
        record, elapsed = _function(clock.record, 2), _function(clock.elapsed, 3)
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
        clock, end = self._clock, time.monotonic() + self._deadline_s
        query = _function(clock.query, 1)
        for stream in clock.streams:
            while (code := query(ctypes.c_uint64(stream))) == _NOT_READY:
                if error := self._async_error():
                    raise Broken(Failure(error, _IN_LIBRARY, iteration))
                if time.monotonic() > end:
                    raise Broken(Failure(0, _LATE, iteration))
                time.sleep(0)
            if code:
                raise Broken(Failure(code, _IN_DEVICE, iteration))

    def _async_error(self) -> int:
        if not self._clock.async_error:
            return 0
        ask, error = _function(self._clock.async_error, 2), ctypes.c_int()
        for comm in self._clock.comms:
            code = ask(ctypes.c_uint64(comm), ctypes.c_uint64(ctypes.addressof(error)))
            if code or error.value not in (0, _IN_PROGRESS):
                return int(code or error.value)
        return 0

    def explain(self, failure: Failure) -> str | None:
        """What happened to work that had been enqueued; None: a call itself failed."""
        clock = self._clock
        why = {_IN_DEVICE: clock.device_error, _IN_LIBRARY: clock.library_error}.get(failure.call)
        if why:
            return f"failed after it had been enqueued: {why(failure.code)}"
        return f"has not completed within {self._deadline_s:g} s" if failure.call == _LATE else None

    def remedy(self, failure: Failure) -> str:
        """What else the user can do about work that has not completed."""
        return f"; or raise --timeout, of which this is {100 * _SHARE:g} %" if failure.call == _LATE else ""


def _words(values: Sequence[int]) -> Words:
    return (ctypes.c_uint64 * len(values))(*values)


def _function(address: int, words: int) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint64] * words)(address)


def _each(function: Callable[..., int], arguments: Sequence[Sequence[int]] | zip[tuple[int, int]], iteration: int) -> None:
    for words in arguments:
        code = function(*map(ctypes.c_uint64, words))
        if code:
            raise Broken(Failure(code, _IN_DEVICE, iteration))


def _call_all(slots: NativeSlots, slot: int, place: int, iteration: int) -> None:
    """Every call of a slot; `place` is where the first one stands in the program, -1 in the synchronisation."""
    for i in range(slots.structs[slot].n):
        call = slots.structs[slot].calls[i]
        code = _function(call.call, len(call.words))(*map(ctypes.c_uint64, call.words))
        if code:
            raise Broken(Failure(code, place if place < 0 else i, iteration))
