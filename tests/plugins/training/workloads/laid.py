"""What the tests of regimes need: a regime's step by its name, what was typed and where the ranks are."""

from collbench.plugins.training.workloads.registry import regime_named
from collbench.plugins.training.workloads.shape import shape_of

MIB = 1024 * 1024


def laid_out(name, typed, hosts):
    regime = regime_named(name)
    return regime.step(shape_of(regime, typed, hosts))


def described(exchange):
    """What matters of an exchange: (operation, groups, size_bytes, times)."""
    return exchange.operation, exchange.groups, exchange.size_bytes, exchange.times
