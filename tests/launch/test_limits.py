"""Limits on the number of ranks of a host, by invented limits; too many ranks are rejected before a process starts."""

import resource
from contextlib import nullcontext

import pytest

from collbench.errors import UsageError
from collbench.launch import limits
from collbench.launch.limits import cpu_limit, free_bytes, free_tasks, refuse_too_many
from tests.cli.command import run


@pytest.fixture
def refused(monkeypatch):
    """Return a function that returns why ranks are refused on a host with these limits and two cores, or nothing."""

    def refused(ranks, *found, oversubscribe=False, cores=2):
        monkeypatch.setattr(limits, "free_bytes", lambda: 1 << 60)
        monkeypatch.setattr(limits, "free_tasks", lambda: iter([(room * limits.TASKS_PER_RANK, where) for room, where in found]))
        try:
            refuse_too_many(ranks, "--ranks", torch=False, oversubscribe=oversubscribe, cores=cores)
        except UsageError as error:
            return str(error)
        return ""

    return refused


def test_16_ranks_per_core_are_allowed_and_no_option_overrides_memory_and_processes(refused):
    assert refused(32) == refused(33, oversubscribe=True) == ""
    more = "more than 16 ranks per core"
    assert refused(33) == f"--ranks 33: {more} (2 cores usable here): start at most 32, or add --oversubscribe"
    assert refused(17, cores=1) == f"--ranks 17: {more} (1 core usable here): start at most 16, or add --oversubscribe"
    for oversubscribe, most in ((True, 50), (False, 32)):
        said = refused(51, (50, "more than there is"), oversubscribe=oversubscribe)
        assert "more than there is" in said and said.endswith(f"at most {most}")
    assert refused(1, (0, "more")) == ""  # one process is always allowed


def system(folder, groups, **files):
    """Make a /proc and a /sys/fs/cgroup with these files, `__` for `/`."""
    proc, cgroups = folder / "proc", folder / "cgroup"
    common = {
        "proc/self/cgroup": groups, "proc/meminfo": "MemTotal: 100 kB\nMemAvailable:   4096 kB\n", "proc/loadavg": "0.1 0.2 0.3 1/200 4711",
        "proc/sys/kernel/pid_max": "32768", "proc/sys/kernel/threads-max": "1000",
    }  # fmt: skip
    for name, text in (common | {name.replace("__", "/"): text for name, text in files.items()}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return proc, cgroups


def test_the_kernels_limits_count_what_runs_already(tmp_path):
    rooms = {where: room for room, where in free_tasks(*system(tmp_path, "0::/\n"))}
    assert rooms["kernel.pid_max"] == 32568 and rooms["kernel.threads-max"] == 800
    assert free_bytes(*system(tmp_path, "0::/\n")) == 4 << 20


def test_each_control_group_up_to_the_topmost_counts(tmp_path):
    proc, cgroups = system(
        tmp_path, "0::/jobs/one\n", **{
            "cgroup__jobs__one__pids.max": "max\n", "cgroup__jobs__one__pids.current": "7\n", "cgroup__jobs__pids.max": "40\n",
            "cgroup__jobs__pids.current": "10\n",
            "cgroup__jobs__one__memory.max": "2097152", "cgroup__jobs__one__memory.current": "1048576",
        },
    )  # fmt: skip
    assert [room for room, where in free_tasks(proc, cgroups) if f"{cgroups}/jobs/pids.max" in where] == [30]
    assert free_bytes(proc, cgroups) == 1 << 20


def test_version_1_of_control_groups_counts_too(tmp_path):
    proc, cgroups = system(
        tmp_path, "8:pids:/job\n4:cpu,memory:/job\n0::/\n", **{
            "cgroup__pids__job__pids.max": "20", "cgroup__pids__job__pids.current": "5",
            "cgroup__memory__memory.limit_in_bytes": "9223372036854771712",
            "cgroup__memory__job__memory.limit_in_bytes": "3145728", "cgroup__memory__job__memory.usage_in_bytes": "1048576",
        },
    )  # fmt: skip
    assert min(room for room, _ in free_tasks(proc, cgroups)) == 15
    assert free_bytes(proc, cgroups) == 2 << 20


@pytest.mark.parametrize(("groups", "names", "cached"), [
    ("0::/job\n", ("job__memory.max", "job__memory.current", "job__memory.stat"), "anon 0\ninactive_file 786432\nactive_file 262144\n"),
    (
        "4:memory:/job\n", [f"memory__job__memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat")],
        "inactive_file 0\nactive_file 0\ntotal_inactive_file 786432\ntotal_active_file 262144\n",
    ),
])  # fmt: skip
def test_cached_files_of_a_control_group_are_free_memory(groups, names, cached, tmp_path):
    texts = ("3145728", "3145728", cached)
    files = {f"cgroup__{name}": text for name, text in zip(names, texts, strict=True)}
    assert free_bytes(*system(tmp_path, groups, **files)) == 1 << 20


@pytest.mark.parametrize(("groups", "files", "cores"), [
    ("0::/pod/a\n", {"cgroup__pod__cpu.max": "200000 100000\n", "cgroup__pod__a__cpu.max": "max 100000\n"}, 2.0),
    ("0::/pod/a\n", {"cgroup__pod__cpu.max": "200000 100000\n", "cgroup__pod__a__cpu.max": "50000 100000\n"}, 0.5),
    ("0::/\n", {"cgroup__cpu.max": "350000 100000\n"}, 3.5),  # in a container that sees no other group
    ("0::/\n", {"cgroup__cpu.max": "max 100000\n"}, None), ("0::/\n", {"cgroup__cpu.max": "no number\n"}, None), ("0::/\n", {}, None),
    ("3:cpu,cpuacct:/docker/x\n", {"cgroup__cpu__cpu.cfs_quota_us": "150000", "cgroup__cpu__cpu.cfs_period_us": "100000"}, 1.5),
    ("3:cpu,cpuacct:/\n", {"cgroup__cpu__cpu.cfs_quota_us": "-1", "cgroup__cpu__cpu.cfs_period_us": "100000"}, None),
])  # fmt: skip
def test_the_lowest_limit_of_cpu_time_counts(groups, files, cores, tmp_path):
    limit = cpu_limit(*system(tmp_path, groups, **files))
    assert (limit and limit[1]) == cores
    assert cpu_limit(tmp_path / "no proc", tmp_path) is None


@pytest.mark.system
@pytest.mark.parametrize(("words", "option"), [
    (["--ranks", "100000", "--backend", "socket"], "--ranks 100000: "),
    (["--ranks", "100000", "--backend", "mpi", "--oversubscribe"], "--ranks 100000: "),
    (["--ranks", "999", "--backend", "socket"], "--ranks 999: "),
])  # fmt: skip
def test_too_many_ranks_are_rejected_before_a_process_starts(words, option, tmp_path):
    done = run(tmp_path, "p2p", *words, timeout=20)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"collbench: {option}") and "at most " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.system
def test_virtual_ranks_need_no_processes(tmp_path):
    assert run(tmp_path, "allreduce", "--backend", "simulated", "--ranks", "64", "--sizes", "8", "--max-time", "0.01").returncode == 0


def test_a_rank_counts_as_several_processes(monkeypatch):
    monkeypatch.setattr(limits, "free_bytes", lambda: 1 << 50)
    monkeypatch.setattr(limits, "free_tasks", lambda: iter([(10 * limits.TASKS_PER_RANK, "kernel.pid_max")]))
    refuse_too_many(10, "--ranks", torch=False, oversubscribe=True, cores=2)
    with pytest.raises(UsageError) as error:
        refuse_too_many(11, "--ranks", torch=False, oversubscribe=True, cores=2)
    said = "--ranks 11: 11 ranks need about 88 processes and threads and kernel.pid_max leaves 80: start at most 10"
    assert str(error.value) == said


@pytest.mark.parametrize(("limit", "backends", "fits"), [
    (64, ["mpi"], True), (64, ["gloo"], True), (20, ["socket"], False), (32, ["gloo"], False), (48, ["mpi"], False),
    (64, ["mpi", "gloo"], False), (resource.RLIM_INFINITY, ["mpi", "gloo"], True),
])  # fmt: skip
def test_two_ranks_need_open_files_for_each_backend(monkeypatch, limit, backends, fits):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    with nullcontext() if fits else pytest.raises(UsageError, match=f"ulimit -n allows {limit}: "):
        limits.refuse_few_files(2, "--ranks", backends, lambda name: True)


def test_only_installed_backends_need_open_files_and_none_is_loaded_if_all_fit(monkeypatch):
    asked = []

    def is_installed(name):
        asked.append(name)
        return name == "mpi"

    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    limits.refuse_few_files(2, "--ranks", ["mpi", "gloo"], is_installed)
    assert asked == ["mpi", "gloo"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1024))
    limits.refuse_few_files(2, "--ranks", ["mpi", "gloo"], is_installed)
    assert asked == ["mpi", "gloo"]


@pytest.mark.parametrize(("torch", "needed", "each", "most"), [(False, "3.91 GiB", "40 MiB", 75), (True, "14.6 GiB", "150 MiB", 20)])
def test_ranks_that_import_torch_need_more_memory(monkeypatch, torch, needed, each, most):
    monkeypatch.setattr(limits, "free_bytes", lambda: 3000 << 20)
    monkeypatch.setattr(limits, "free_tasks", lambda: iter(()))
    with pytest.raises(UsageError) as error:
        refuse_too_many(100, "--ranks", torch=torch, oversubscribe=True, cores=2)
    need = f"100 ranks need about {needed} of memory ({each} each)"
    assert str(error.value) == f"--ranks 100: {need} and 2.93 GiB is available: start at most {most}"
