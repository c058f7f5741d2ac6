"""Gauges in OpenMetrics' form, for Prometheus: a file that node_exporter's textfile collector takes, too.

That collector reads the older text format alone (prometheus/node_exporter#1988) and drops a whole file for one line that it does not
know: so there are gauges and nothing else, no timestamps, no series twice. Units stand in the names; what is unknown has no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from collbench.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_PREFIX = "collbench"
# name: (unit, what it is). No quotes and no backslashes in the words: the two formats escape them differently.
About = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Sample:
    """A value of one of the metrics; None: unknown."""

    name: str
    labels: Mapping[str, str]
    value: float | None


def exposed(about: About, samples: Iterable[Sample]) -> str:
    """The whole file, metrics in the order of `about`. Raises UsageError without the extra `report`."""
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics import exposition
    except ImportError as error:
        raise UsageError("--openmetrics needs prometheus_client: pip install 'collbench[report]'") from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(_families(about, samples)))
    write: Any = exposition.generate_latest
    return str(write(registry), "utf-8")


class _Collected:
    """What the library asks for its metrics."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """Every metric that has a sample."""
        yield from self._families


def _families(about: About, samples: Iterable[Sample]) -> list[Metric]:
    """Metrics with their samples; of a series that occurs twice the last value, and of a value that is unknown none."""
    from prometheus_client.core import Metric

    by_name: dict[str, dict[frozenset[tuple[str, str]], Sample]] = {name: {} for name in about}
    for sample in samples:
        by_name[sample.name][frozenset(sample.labels.items())] = sample
    families = []
    for name, (unit, words) in about.items():
        family = Metric(f"{_PREFIX}_{name}", words, "gauge", unit)
        for sample in by_name[name].values():
            if sample.value is not None and isfinite(sample.value):
                family.add_sample(family.name, dict(sample.labels), sample.value)
        families.append(family)
    return [family for family in families if family.samples]
