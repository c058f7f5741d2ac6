"""All rules over the machines and logs of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from collbench.machine.doctor import between, counters, gpus, host, log_startup, logs, nics, paths, pcie, since
from collbench.machine.doctor.finding import Finding, worst_first
from collbench.machine.doctor.view import View
from collbench.machine.model import Machine
from collbench.machine.readers.nccl_log import NcclLog

Rule = Callable[[View], Iterator[Finding]]
JobRule = Callable[[Sequence[View]], Iterator[Finding]]
LogRule = Callable[[NcclLog, Sequence[View]], Iterator[Finding]]

RULES: Final[tuple[Rule, ...]] = (*pcie.RULES, *nics.RULES, *counters.RULES, *gpus.RULES, *host.RULES, *paths.RULES)
JOB_RULES: Final[tuple[JobRule, ...]] = (*gpus.JOB_RULES, *between.JOB_RULES)
LOG_RULES: Final[tuple[LogRule, ...]] = (*logs.RULES, *log_startup.RULES)


def examine(machines: Sequence[Machine], logs: Sequence[NcclLog] = (), good: Sequence[Machine] = ()) -> list[Finding]:
    """What is wrong with the machines of a job, worst first; a rule without the facts it needs accuses nobody.

    good: snapshots of when they were. Raises UsageError for a machine that none of several is of.
    """
    views = [View(machine) for machine in machines]
    found = [finding for view in views for rule in RULES for finding in rule(view)]
    found += [finding for rule in JOB_RULES for finding in rule(views)]
    found += [finding for log in logs for rule in LOG_RULES for finding in rule(log, views)]
    found += since.examined(machines, good) if good else []
    return worst_first(found)
