"""What the tests of plug-ins share with those of the core."""

from tests.cli.conftest import request_of
from tests.measure.conftest import backend, signals_are_left_as_they_were

__all__ = ["backend", "request_of", "signals_are_left_as_they_were"]
