"""`collbench tune`: which forced choices replace a library's own, the files of the libraries, and what the command says."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from collbench.analysis.launches import read_all
from collbench.errors import UsageError
from collbench.operations.sweep import ALGORITHMS
from collbench.plugins.tune.files import file_of, refusal
from collbench.plugins.tune.sweep import OWN, Choice, Override, overrides_of, sizes_of
from collbench.results.row import Times
from tests.cli.command import one_sentence, run_here
from tests.results.rows import make_row, store

MPICH = {"mpi": {"mpi": "MPICH 5.0.2"}}
OPEN_MPI = {"mpi": {"mpi": "Open MPI 5.0.8"}}
RING = {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "recursive_doubling"}
FORCED = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", "OMPI_MCA_coll_tuned_allreduce_algorithm": "ring"}
ALLREDUCE = Override("allreduce", 1, 4, 1024, 65536, Choice("recursive_doubling"))
BUILT_IN = {
    "collective=bcast": {"comm_type=intra": {"algorithm=MPIR_Bcast_intra_binomial": {}}},
    "collective=allreduce": {"comm_type=intra": {"algorithm=MPIR_Allreduce_intra_smp": {}}, "comm_type=inter": {"algorithm=inter": {}}},
}


def launch(
    path: Path, time_s: Mapping[int, float], environment: Mapping[str, str] = RING, width: float = 0.01, **changes: Any
) -> Path:  # fmt: skip
    """Store a launch over MPICH, or over what `changes` say, with these medians by size."""
    backends = changes.pop("backends", MPICH)
    libraries = changes.pop("libraries", [])
    rows = [
        make_row(size, **{"backend": "mpi", "time_s": times(median, width), "busbw_bytes_per_s": None, **changes})
        for size, median in time_s.items()
    ]
    command = ["collbench", "allreduce", "--sizes", "1K,64K", "--out", str(path)]
    return store(path, rows, environment=dict(environment), backends=backends, command=command, libraries=libraries)


def times(p50: float, width: float) -> Times:
    return Times(p50, p50 * (1 - width), p50 * (1 + width), p50 * 0.9, p50 * 1.2, p50 * 1.5, p50 * 2)


def judged(runs: Sequence[Path], least_percent: float = 2.0) -> dict[int, tuple[str, str]]:
    """Return the fastest forced choice and the outcome by size."""
    return {size.size_bytes: (size.choice, size.outcome) for size in sizes_of(read_all(runs), least_percent)}


@pytest.mark.parametrize(("own_s", "forced_s", "width", "outcome"), [
    (100e-6, 80e-6, 0.01, "override"),
    (100e-6, 99e-6, 0.001, "as good"),  # faster beyond doubt, but by less than is asked for
    (100e-6, 80e-6, 0.15, "as good"),  # the intervals overlap
    (100e-6, 130e-6, 0.01, "as good"),
], ids=["faster", "by less than 2 %", "wide intervals", "slower"])  # fmt: skip
def test_a_choice_replaces_the_librarys_only_where_the_intervals_exclude_it(
    tmp_path: Path, own_s: float, forced_s: float, width: float, outcome: str
) -> None:
    runs = [launch(tmp_path / "own", {1024: own_s}, {}, width), launch(tmp_path / "forced", {1024: forced_s}, RING, width)]
    assert judged(runs) == {1024: ("recursive_doubling", outcome)}


def test_intervals_are_over_launches_where_both_have_several(tmp_path: Path) -> None:
    """Within each launch the forced choice is faster beyond doubt; between launches it differs by more than it saves."""
    runs = [launch(tmp_path / f"own-{number}", {1024: time_s}, {}) for number, time_s in enumerate((100e-6, 101e-6, 130e-6))]
    runs += [launch(tmp_path / f"forced-{number}", {1024: time_s}) for number, time_s in enumerate((90e-6, 91e-6, 120e-6))]
    assert judged([runs[0], runs[3]]) == {1024: ("recursive_doubling", "override")}
    assert judged(runs) == {1024: ("recursive_doubling", "as good")}


@pytest.mark.parametrize(("environment", "change"), [
    ({}, {"wrong": 3}), ({}, {"na": "not supported"}), ({"UCX_TLS": "tcp"}, {}),
], ids=["wrong data", "n/a", "other conditions"])  # fmt: skip
def test_a_choice_without_a_valid_time_or_under_other_conditions_is_never_the_fastest(environment, change, tmp_path: Path) -> None:
    runs = [launch(tmp_path / "own", {1024: 100e-6}, environment), launch(tmp_path / "forced", {1024: 50e-6}, **change)]
    assert judged(runs) == {1024: ("", "unknown")}


@pytest.mark.parametrize(("environment", "backends", "remedy"), [
    ({"MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE": "/site/tuned.json"}, MPICH, "leave it out"),
    ({"OMPI_MCA_coll_tuned_allreduce_algorithm": "ring"}, OPEN_MPI, "use_dynamic_rules"),
])  # fmt: skip
def test_a_tuner_files_choice_and_an_algorithm_that_open_mpi_ignored_are_refused(environment, backends, remedy, tmp_path: Path) -> None:
    run = launch(tmp_path / "run", {1024: 100e-6}, environment, backends=backends)
    with pytest.raises(UsageError, match=remedy):
        judged([run])


def test_nccls_choices_have_protocol_and_channels_and_each_choice_a_name(tmp_path: Path) -> None:
    own = launch(tmp_path / "own", {1024: 100e-6}, {}, backend="nccl")
    channels = {"NCCL_MIN_NCHANNELS": "16", "NCCL_MAX_NCHANNELS": "16"}
    forced = launch(tmp_path / "forced", {1024: 50e-6}, channels, backend="nccl", algorithm="ring", protocol="ll128")
    (size,) = sizes_of(read_all([own, forced]), 2.0)
    assert (size.library, size.forced) == ("nccl", Choice("ring", "ll128", 16))
    assert [str(OWN), str(size.forced)] == ["own choice", "ring/ll128, 16 channels"]


def test_a_limit_of_nccls_channels_is_a_condition_and_not_its_own_choice(tmp_path: Path) -> None:
    own = launch(tmp_path / "own", {1024: 100e-6}, {"NCCL_MAX_NCHANNELS": "1"}, backend="nccl")
    forced = launch(tmp_path / "forced", {1024: 50e-6}, {}, backend="nccl", algorithm="ring", protocol="ll128")
    assert judged([own, forced]) == {1024: ("", "unknown")}


def test_a_range_ends_where_a_measured_size_wants_something_else(tmp_path: Path) -> None:
    sizes = (1024, 4096, 16384, 65536, 262144)
    own = launch(tmp_path / "own", dict.fromkeys(sizes, 100e-6), {})
    forced = launch(tmp_path / "forced", dict(zip(sizes, (80e-6, 80e-6, 120e-6, 80e-6, 80e-6), strict=True)))
    other = launch(tmp_path / "other", {262144: 70e-6}, {"MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather"})
    overrides = overrides_of(sizes_of(read_all([own, forced, other]), 2.0))
    assert [(override.first_bytes, override.last_bytes, override.choice.algorithm) for override in overrides] == [
        (1024, 4096, "recursive_doubling"), (65536, 65536, "recursive_doubling"), (262144, 262144, "reduce_scatter_allgather"),
    ]  # fmt: skip


@pytest.mark.parametrize(("field", "values"), [("dtype", ("float32", "bfloat16")), ("nodes", (1, 2))])
@pytest.mark.parametrize(("second_s", "written"), [(300e-6, False), (80e-6, True)], ids=["slower", "faster"])
def test_a_choice_that_is_slower_under_conditions_that_the_file_cannot_tell_apart_is_not_written(
    tmp_path: Path, field: str, values: tuple[Any, Any], second_s: float, written: bool
) -> None:
    for value, forced_s in zip(values, (80e-6, second_s), strict=True):
        launch(tmp_path / "own" / f"{value}", {1024: 100e-6, 4096: 100e-6}, {}, backends=OPEN_MPI, **{field: value})
        launch(tmp_path / "ring" / f"{value}", {1024: forced_s, 4096: 80e-6}, FORCED, backends=OPEN_MPI, **{field: value})
    runs = sorted(tmp_path.glob("*/*"))
    (override,) = overrides_of(sizes_of(read_all(runs), 2.0))
    assert (override.first_bytes, override.last_bytes) == (1024 if written else 4096, 4096)
    done = run_here(tmp_path, "tune", *map(str, runs))
    assert ("not written: allreduce 1 KiB on 4 ranks" in done.stdout) is not written


# The files.


def test_nccls_file_has_a_line_for_each_range() -> None:
    override = Override("allreduce", 2, 16, 1024, 65536, Choice("ring", "ll128", 16))
    *_, line = file_of("nccl", [override], [], ["a sentence"]).splitlines()
    assert line == "allreduce,1024,65536,ring,ll128,16,2,16,-1,-1"


def test_nccls_file_has_the_names_of_the_plug_in_which_takes_others_for_ring() -> None:
    overrides = [Override("allreduce", 2, 16, 1024, 1024, Choice(name, "simple")) for name in ALGORITHMS]
    lines = file_of("nccl", overrides, [], []).splitlines()[1:]
    names = ["ring", "tree", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"]
    assert [line.split(",")[3] for line in lines] == names


def test_open_mpis_rules_hand_the_choice_back_after_a_range_and_to_other_numbers_of_ranks() -> None:
    text = file_of("openmpi", [ALLREDUCE], [], ["a sentence"])
    assert [line.partition("#")[0].strip() for line in text.splitlines()] == [
        "", "1", "2", "2", "4", "3", "0 0 0 0", "1024 3 0 0", "65537 0 0 0", "5", "1", "0 0 0 0",
    ]  # fmt: skip


def test_mpichs_file_has_the_built_in_decisions_outside_the_range(tmp_path: Path) -> None:
    own = BUILT_IN["collective=allreduce"]["comm_type=intra"]
    library = tmp_path / "libmpi.so.12"
    library.write_bytes(b"\x7fELF\0" + json.dumps(BUILT_IN, separators=(",", ":")).encode() + b"\0more")
    runs = read_all([launch(tmp_path / "run", {1024: 1e-4}, {}, libraries=[str(library)])])
    document = json.loads(file_of("mpich", [ALLREDUCE], runs, []))
    assert document["collective=bcast"] == BUILT_IN["collective=bcast"]
    assert document["collective=allreduce"]["comm_type=inter"] == {"algorithm=inter": {}}
    intra = document["collective=allreduce"]["comm_type=intra"]
    assert list(intra) == ["comm_size<4", "comm_size<=4", "comm_size=any"]
    assert intra["comm_size<4"] == intra["comm_size=any"] == own
    sizes = intra["comm_size<=4"]
    assert list(sizes) == ["avg_msg_size<1024", "avg_msg_size<=65536", "avg_msg_size=any"]
    built_in = sizes["avg_msg_size<=65536"]["is_op_built_in=yes"]
    assert built_in == {"count<pow2": own, "count=any": {"algorithm=MPIR_Allreduce_intra_recursive_doubling": {}}}
    assert sizes["avg_msg_size<=65536"]["is_op_built_in=no"] == own


def test_without_the_library_mpichs_file_is_refused(tmp_path: Path) -> None:
    runs = read_all([launch(tmp_path / "run", {1024: 1e-4}, {}, libraries=["/absent/libmpi.so.12"])])
    with pytest.raises(UsageError, match="run this on a host"):
        file_of("mpich", [ALLREDUCE], runs, [])


@pytest.mark.parametrize(("library", "operation", "choice", "refused"), [
    ("nccl", "allreduce", Choice("ring", "ll"), False), ("nccl", "allreduce", Choice("ring"), True),
    ("nccl", "allreduce", Choice("ring,tree", "ll"), True), ("nccl", "allreduce", Choice("ring", "^ll"), True),
    ("nccl", "alltoall", Choice("ring", "ll"), True), ("openmpi", "allreduce", Choice("rabenseifner"), False),
    ("openmpi", "allreduce", Choice("4"), False), ("openmpi", "allreduce", Choice("unheard of"), True),
    ("mpich", "broadcast", Choice("binomial"), False), ("mpich", "broadcast", Choice("tree"), True),
])  # fmt: skip
def test_what_a_file_cannot_have_is_refused(library: Any, operation: str, choice: Choice, refused: bool) -> None:
    assert (refusal(library, Override(operation, 1, 4, 8, 8, choice)) is not None) is refused


# The command.


def test_the_command_writes_a_file_and_how_to_prove_it(tmp_path: Path) -> None:
    launch(tmp_path / "own", {1024: 100e-6}, {}, backends=OPEN_MPI)
    launch(tmp_path / "ring", {1024: 50e-6}, FORCED, backends=OPEN_MPI)
    done = run_here(tmp_path, "tune", "own", "ring", "--out", "rules.conf")
    assert (done.returncode, done.stderr) == (0, "wrote rules.conf\n")
    assert "1024 4 0 0" in (tmp_path / "rules.conf").read_text().splitlines()
    assert f"OMPI_MCA_coll_tuned_dynamic_rules_filename={tmp_path / 'rules.conf'}" in done.stdout
    assert "collbench gate --paired old-1 old-2 new-1 new-2" in done.stdout


def test_for_nccl_the_limit_of_its_plug_in_is_printed(tmp_path: Path) -> None:
    launch(tmp_path / "own", {1024: 100e-6}, {}, backend="nccl")
    launch(tmp_path / "ring", {1024: 50e-6}, {}, backend="nccl", algorithm="ring", protocol="ll128")
    assert "*nChannels = 0 in its plugin.c" in " ".join(run_here(tmp_path, "tune", "own", "ring").stdout.split())


def test_without_a_gain_nothing_is_written(tmp_path: Path) -> None:
    launch(tmp_path / "own", {1024: 100e-6}, {}, backends=OPEN_MPI)
    launch(tmp_path / "ring", {1024: 110e-6}, FORCED, backends=OPEN_MPI)
    done = run_here(tmp_path, "tune", "own", "ring", "--out", "rules.conf", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["outcome"], (tmp_path / "rules.conf").exists()) == (0, "as good", False)


@pytest.mark.parametrize(("words", "reason"), [
    ((), "tune needs runs"), (("own",), "no run forces an algorithm"), (("ring", "other"), "a file is for one library"),
    (("--sweep", "mpich", "--operation", "barrier"), "choose from"), (("own", "--least", "100"), "not a percentage"),
    (("absent",), "absent"),
])  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    launch(tmp_path / "own", {1024: 100e-6}, {})
    launch(tmp_path / "ring", {1024: 50e-6}, FORCED, backends=OPEN_MPI)
    launch(tmp_path / "other", {1024: 50e-6})
    assert reason in one_sentence(run_here(tmp_path, "tune", *words))


@pytest.mark.parametrize("library", ["nccl", "openmpi", "mpich"])
def test_a_sweep_measures_the_own_choice_and_each_forced_one(tmp_path: Path, library: str) -> None:
    done = run_here(tmp_path, "tune", "--sweep", library)
    first, *forced = done.stdout.splitlines()
    assert done.returncode == 0
    assert first.startswith("collbench allreduce ")
    assert all("algorithm=" in line.lower() for line in forced[:-1])
