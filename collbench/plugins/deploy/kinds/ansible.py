"""Ansible: a playbook, over ssh alone. Measuring commands are one launch; probe and doctor run on each host, and are collected."""

from __future__ import annotations

from collbench.errors import UsageError
from collbench.plugins.deploy.files import filled
from collbench.plugins.deploy.job import EVERYWHERE, MINUTES, PORT, JobSetting, LauncherKind, LaunchJob, word

GROUP = JobSetting(
    "group", "GROUP", "the group of the inventory: its first hosts are used; probe without --nodes uses all of them", word, "all"
)
_ALONE = ("probe", "doctor")
_POLL_S = 5
_RESERVED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def _render(job: LaunchJob) -> str:
    if taken := [name for name in _RESERVED if name in job.environment]:
        raise UsageError(f"--env {taken[0]} is set by the playbook for each host: omit it")
    if job.command[0] not in _ALONE:
        return _launch(job)
    if job.option("--format") not in (None, "json"):
        raise UsageError("emit ansible collects JSON for `collbench probe --from`: omit --format")
    if left := [name for name in ("--gather", "--svg") if job.option(name) is not None]:
        raise UsageError(f"emit ansible collects the output of {job.command[0]}, not files: omit {left[0]}")
    hosts = _hosts(job) if "nodes" in job.explicit else job["group"]
    return filled("ansible-each.yml.j2", job=job, hosts=hosts, seconds=job["minutes"] * 60, formatted=job.option("--format") is not None)


def _launch(job: LaunchJob) -> str:
    seconds = job["minutes"] * 60
    return filled(
        "ansible-launch.yml.j2",
        job=job,
        hosts=_hosts(job),
        folder=job.out or job.option("--resume"),
        secret=not {"COLLBENCH_SECRET", "COLLBENCH_SECRET_FILE"} & set(job.environment),
        seconds=seconds,
        polls=seconds // _POLL_S + 12,  # one minute more, for the messages of a launch that was ended
        poll_s=_POLL_S,
    )


def _hosts(job: LaunchJob) -> str:
    return f"{job['group']}[0:{job.nodes - 1}]"


KIND = LauncherKind(
    name="ansible",
    summary="a playbook: one launch over ssh, or the collected probe of all hosts",
    settings=(*EVERYWHERE, MINUTES, PORT, GROUP),
    render=_render,
    start="ansible-playbook -i INVENTORY FILE",
)
