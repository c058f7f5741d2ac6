"""torchrun: a script that is started on each node; the nodes find each other by rendezvous."""

from __future__ import annotations

import posixpath
import re

from collbench.addresses import is_link_local, is_numeric
from collbench.errors import UsageError
from collbench.plugins.deploy.files import Quoted, filled, sh
from collbench.plugins.deploy.job import CPUS, EVERYWHERE, HOSTS, MODULES, PORT, JobSetting, LauncherKind, LaunchJob, one_of

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def _host(text: str) -> str:
    if not (_HOST.fullmatch(text) or (is_numeric(text) and "%" not in text and not is_link_local(text))):
        raise UsageError(f"{text!r} is not a valid host: use a name or an address; set the port with --port")
    return text


RENDEZVOUS = JobSetting(
    "rendezvous",
    "HOW",
    "c10d: a store assigns the ranks; static: each node gets its number as an argument",
    one_of("c10d", "static"),
    "c10d",
)
ENDPOINT = JobSetting("endpoint", "HOST", "the node of the rendezvous (default: the first of --hosts, else of the Slurm job)", _host)


def _render(job: LaunchJob) -> str:
    static = job["rendezvous"] == "static"
    return filled(
        "torchrun.sh.j2",
        job=job,
        static=static,
        ipv6=":" in (job["endpoint"] or ""),
        alone=job.nodes == 1 and not (static or job["endpoint"] or job["hosts"]),
        folder=posixpath.dirname(job["program"]),
        threads=job["cpus-per-rank"] or 1,
        hosts_word=sh(job["hosts"] or "HOSTS"),
        out=Quoted(' --out "$out"' if job.wants_out else ""),
    )


KIND = LauncherKind(
    name="torchrun",
    summary="a script for torchrun, to be started on each node",
    settings=(*EVERYWHERE, CPUS, MODULES, HOSTS, PORT, RENDEZVOUS, ENDPOINT),
    render=_render,
    start="bash FILE    # on each node, by srun or ssh: see its first lines",
)
