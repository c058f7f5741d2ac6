"""Virtual ranks: times made up from a seed, data really moved."""

import ctypes

import numpy as np
import pytest

from collbench.backends.backend import Settings
from collbench.backends.simulated import ALPHA_S, BETA_BYTES_PER_S, SimulatedBackend, VirtualClock
from collbench.measuring.loop import Loop, Timed
from collbench.operations.builtin.allreduce import ALLREDUCE
from collbench.operations.builtin.p2p import P2P_BANDWIDTH
from tests.helpers import make_case


def opened(world, ranks, seed=0):
    backend = SimulatedBackend()
    backend.open(world, Settings(virtual_ranks=ranks, seed=seed))
    return backend


def loop_of(backend, operation, case, ranks):
    group = backend.group(range(ranks))
    buffers = backend.allocate(operation, case, group, 2)
    return buffers, Loop(Timed(backend.bind(operation, case, group, buffers), backend.sync(group), backend.clock(), ctypes.c_int64()))


def test_the_same_seed_gives_the_same_samples(world):
    def samples(seed):
        return loop_of(opened(world, 4, seed), ALLREDUCE, make_case(), 4)[1].run(50)

    assert np.array_equal(samples(1), samples(1))
    assert not np.array_equal(samples(1), samples(2))
    assert samples(1).shape == (4, 50)


def test_time_is_latency_plus_bytes_over_the_link(world):
    seconds = np.median(loop_of(opened(world, 4), ALLREDUCE, make_case(count=2**17), 4)[1].run(200))
    assert seconds == pytest.approx(ALPHA_S + 1.5 * 2**19 / BETA_BYTES_PER_S, rel=0.02)
    window = np.median(loop_of(opened(world, 2), P2P_BANDWIDTH, make_case(redop=None, window=10), 2)[1].run(200))
    assert window == pytest.approx(10 * (ALPHA_S + 400 / BETA_BYTES_PER_S), rel=0.02)


def test_it_has_every_operation_and_as_many_virtual_ranks_as_asked_for_and_reports_that_they_are_simulated(world):
    assert (opened(world, 300).ranks, opened(world, None).ranks) == (300, 1)
    backend = opened(world, 2)
    assert {"allreduce", "broadcast", "p2p_latency", "p2p_bandwidth", "p2p_bidirectional"} <= set(backend.steps)
    assert backend.supports(ALLREDUCE, make_case("bfloat16", redop="avg")) is None
    assert (backend.own_ceiling.kind, backend.own_ceiling.source) == ("simulated", "made up")
    assert "all made up" in backend.versions()["simulated"]


def test_ranks_of_the_clock_meet_and_drift_apart():
    clock = VirtualClock(3, seed=0)
    start = clock.stamp()
    clock.advance([0, 1, 2], 1.0)
    assert len(set(clock.stamp())) == 3
    clock.align()
    assert len(set(clock.stamp())) == 1
    clock.advance([1], 5.0)
    assert clock.elapsed([start], [clock.stamp()]).shape == (3, 1)
    assert clock.stamp()[1] > clock.stamp()[0]
