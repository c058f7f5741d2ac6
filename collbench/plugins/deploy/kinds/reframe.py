"""ReFrame: a check that passes if all data is correct, and logs the bus bandwidth of each test case."""

from __future__ import annotations

import re

from collbench.plugins.deploy.files import filled, line, sh
from collbench.plugins.deploy.job import (
    CPUS,
    ENV,
    GPUS,
    MINUTES,
    MODULES,
    NAME,
    NODES,
    PROGRAM,
    RANKS,
    JobSetting,
    LauncherKind,
    LaunchJob,
    matching,
)

_ALONE = ("probe", "doctor")
_OWN_FOLDER = "run"  # in ReFrame's stage folder


system = matching(r"[A-Za-z0-9_*+%@][A-Za-z0-9_*+%@=.:-]*", "a valid system of ReFrame: use SYSTEM, SYSTEM:PARTITION, * or +FEATURE")
SYSTEM = JobSetting("system", "SYSTEM", "where ReFrame may run the check: system:partition of its configuration, or +feature", system, "*")


def _render(job: LaunchJob) -> str:
    folder = job.out or job.option("--resume") or _OWN_FOLDER
    added = ["--out", folder] if job.wants_out else []
    return filled(
        "reframe.py.j2",
        job=job,
        classname=_class(job["name"]),
        words=[sh(word) for word in (*job.command, *added)],
        exports=["export " + line([f"{name}={value}"]) for name, value in job.environment.items()],
        report=None if job.command[0] in _ALONE else f"{sh(job['program'])} report {sh(folder)} --format json >rows.jsonl",
        kept=job.wants_out,
    )


def _class(name: str) -> str:
    """Return the check's name, a Python class, with a prefix that no keyword and no other name of the file has."""
    camel = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", name))
    return camel if camel.startswith("Collbench") else f"Collbench{camel}"


KIND = LauncherKind(
    name="reframe",
    summary="a check that passes if all data is correct",
    settings=(NODES, GPUS, RANKS, NAME, PROGRAM, ENV, CPUS, MINUTES, MODULES, SYSTEM),
    render=_render,
    start="reframe -c FILE -r",
)
