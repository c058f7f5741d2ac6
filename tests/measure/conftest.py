"""What the runner's tests share."""

import signal

import pytest

from collbench.backends import registry
from collbench.control.world import World
from collbench.measuring import open_backends
from tests.measure.launches import ALONE


@pytest.fixture(autouse=True)
def signals_are_left_as_they_were():
    """A launch that breaks off heeds no signal from then on: in a test it is not the process that ends."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def world():
    alone = World(ALONE, 5.0)
    yield alone
    alone.close()


@pytest.fixture
def backend(monkeypatch):
    """Puts a backend in the place of every other."""

    def put(kind):
        for module in (registry, open_backends):
            monkeypatch.setattr(module, "backend_class", lambda name: kind)

    return put
