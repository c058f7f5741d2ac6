"""`collbench certify`: each figure against its criterion, what follows for each host, the files, and how steps start."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from collbench.analysis.health import CheckVerdict, NothingMeasured, Reach, ReachesExpected, SeriesCheck, WrongDataReceived
from collbench.errors import UsageError
from collbench.machine.peak.ceiling import Ceiling
from collbench.measuring.disturbances import NetworkCounts
from collbench.plugins.certify.certificate import schema
from collbench.plugins.certify.criteria import Criteria, Criterion, read_criteria
from collbench.plugins.certify.judging import judge
from collbench.plugins.certify.losses import LossFigure, losing_hosts
from collbench.plugins.certify.sources import EvidenceSet
from collbench.plugins.certify.steps import StepLauncher, run_steps
from collbench.plugins.hunt.facts import TooManySlowGroups
from collbench.reason import as_json
from collbench.records import document
from collbench.report.health import CheckAnswer, store_check
from collbench.results.row import Row, Times
from collbench.results.store import to_page
from tests.cli.command import ROOT, one_sentence, run_here
from tests.gate.verdicts import verdict as gate_verdict
from tests.results.rows import make_row, store

SAMPLE = ROOT / "reports/certify"
COPY = Ceiling("measured", 34e9, "memory copy and sum", low_bytes_per_s=33e9, high_bytes_per_s=35e9)
HOSTS = ["h1", "h2"]


def times(percent: float, width: float = 0.01) -> dict[str, Any]:
    """Return the fields of a row at this percentage of its expected bandwidth, with an interval of ± width."""
    spread = Times(1e-3, 1e-3 * (1 - width), 1e-3 * (1 + width), 0.9e-3, 1.2e-3, 1.5e-3, 2e-3)
    return {"time_s": spread, "percent_of_ceiling": percent, "busbw_bytes_per_s": 0.5e9 * percent, "nodes": 2, "ranks": 2}


def criteria(**criterion: Any) -> Criteria:
    """Return one criterion, which is measured by the step "suite"."""
    step = Criterion(**{"step": "suite", **criterion})
    return Criteria(1, "test", {"one": step}, {"suite": "run quick"})


OPERATIONS: Mapping[str, Any] = {"evidence": "operations", "operations": ("allreduce",), "share": 0.8}


def evidence(*paths: Path) -> EvidenceSet:
    found = EvidenceSet()
    for path in paths:
        found.add(path)
    return found


def run_of(folder: Path, *rows: Row, **info: Any) -> Path:
    """Store a run of these rows, or of one at 90 %, on both hosts."""
    return store(folder / "run", rows or [make_row(**times(90))], **{"hosts": HOSTS, **info})


def outcome(rules: Criteria, found: EvidenceSet) -> tuple[list[str], dict[str, str]]:
    """Return the verdicts of the judgements, and by host that about it."""
    judgements, hosts = judge(rules, found)
    return [judgement.verdict for judgement in judgements], {host.host: host.verdict for host in hosts}


@pytest.mark.parametrize(("fields", "verdict"), [
    (times(90), "PASS"), (times(81, 0.01), "PASS"), (times(81, 0.05), "INCOMPLETE"), (times(70), "FAIL"), (times(79, 0.05), "INCOMPLETE"),
    ({**times(90), "wrong": 3}, "FAIL"), ({**times(90), "checked": 0}, "INCOMPLETE"),
    ({**times(90), "flags": ("above_bound",)}, "INCOMPLETE"), ({**times(70), "flags": ("slowed",)}, "INCOMPLETE"),
    ({**times(70), "flags": ("cpu_shared",)}, "INCOMPLETE"), ({**times(70), "flags": ("lossy_path",)}, "FAIL"),
    ({**times(90), "n": 3}, "INCOMPLETE"), ({**times(90), "ceiling": Ceiling("given", 50e9, "the ceiling given")}, "INCOMPLETE"),
    ({**times(90), "percent_of_ceiling": None}, "INCOMPLETE"), ({**times(90), "ceiling": COPY}, "PASS"),
    ({**times(130), "ceiling": COPY}, "INCOMPLETE"), ({**times(40), "backend": "gloo"}, "INCOMPLETE"),
], ids=[
    "above", "just above", "interval on both sides", "below", "just below", "wrong data", "not verified", "above the hard limit",
    "slowed on purpose", "disturbed", "lost packets", "few samples", "typed rate", "unknown rate", "measured reference",
    "disturbed reference", "one process over TCP on a fast link",
])  # fmt: skip
def test_a_row_passes_or_fails_only_with_its_whole_interval(tmp_path: Path, fields: dict[str, Any], verdict: str) -> None:
    run = run_of(tmp_path, make_row(**fields))
    judged, hosts = outcome(criteria(**OPERATIONS), evidence(run))
    assert judged == [verdict]
    assert set(hosts.values()) == {"vetted" if verdict == "PASS" else "not vetted"}


def test_the_fastest_backend_decides_unless_backends_are_named_of_which_each_has_to_be_measured(tmp_path: Path) -> None:
    both = criteria(**OPERATIONS, backends=("nccl", "mpi"))
    judged, hosts = outcome(both, evidence(run_of(tmp_path / "nccl")))
    assert judged == ["PASS", "INCOMPLETE"] and set(hosts.values()) == {"not vetted"}
    run = evidence(run_of(tmp_path, make_row(**times(90)), make_row(**{**times(60), "backend": "mpi"})))
    assert (outcome(criteria(**OPERATIONS), run)[0], outcome(both, run)[0]) == (["PASS"], ["PASS", "FAIL"])


def test_smaller_sizes_and_groups_of_a_split_are_not_judged(tmp_path: Path) -> None:
    rows = [make_row(1 << 20, **times(10)), make_row(**{**times(10), "group": "DIV 2"}), make_row(**times(90))]
    assert outcome(criteria(**OPERATIONS), evidence(run_of(tmp_path, *rows)))[0] == ["PASS"]


def test_a_host_without_evidence_is_not_vetted_and_the_command_is_named(tmp_path: Path) -> None:
    rules = criteria(**{**OPERATIONS, "operations": ("allreduce", "alltoall")})
    (_, missing), hosts = judge(rules, evidence(run_of(tmp_path)))
    assert (missing.verdict, missing.case, missing.command) == ("INCOMPLETE", "alltoall", "collbench run quick")
    assert {host.verdict for host in hosts} == {"not vetted"}
    assert [judgement.verdict for judgement in judge(rules, EvidenceSet())[0]] == ["INCOMPLETE", "INCOMPLETE"]


def test_a_later_run_decides_what_an_earlier_one_left_open_and_never_excuses_a_failure(tmp_path: Path) -> None:
    figures = {"undecided": times(81, 0.05), "passed": times(90), "failed": times(60)}
    undecided, passed, failed = (run_of(tmp_path / name, make_row(**row), started_utc=name) for name, row in figures.items())
    assert set(outcome(criteria(**OPERATIONS), evidence(undecided, passed))[1].values()) == {"vetted"}
    assert set(outcome(criteria(**OPERATIONS), evidence(passed, failed))[1].values()) == {"not vetted"}


# Hosts that evidence names.


def doctor(path: Path, hosts: Sequence[str], *findings: tuple[str, str | None]) -> Path:
    """Store what doctor prints about these hosts: (severity, host) of each finding."""
    stored = [{"code": "CB2101", "severity": severity, "hostname": host, "what": "a slow slot", "evidence": "sysfs", "remedy": "reseat it"}
              for severity, host in findings]  # fmt: skip
    path.write_text(json.dumps({"schema": 1, "findings": stored, "hostnames": list(hosts), "not_looked_at": []}))
    return path


@pytest.mark.parametrize(("finding", "hosts"), [
    (("severe", "h2"), {"h1": "vetted", "h2": "faulty"}), (("severe", None), {"h1": "not vetted", "h2": "not vetted"}),
    (("warning", "h2"), {"h1": "vetted", "h2": "vetted"}),
])  # fmt: skip
def test_a_severe_finding_names_its_host(tmp_path: Path, finding: tuple[str, str | None], hosts: dict[str, str]) -> None:
    found = evidence(doctor(tmp_path / "doctor.json", HOSTS, finding))
    assert outcome(criteria(evidence="doctor"), found)[1] == hosts


def test_a_hunt_names_its_confirmed_suspect_and_vouches_for_the_others() -> None:
    judged, hosts = outcome(criteria(evidence="hunt"), evidence(ROOT / "reports/hunt-host"))
    assert hosts == {f"cb1h{number}": "faulty" if number == 7 else "vetted" for number in range(1, 9)}
    assert sorted(judged) == ["FAIL", "PASS", "PASS"]


TOO_MANY = TooManySlowGroups(2, 3, 4)
NOT_VETTED = {f"cb1h{number}": "not vetted" for number in range(1, 9)}


@pytest.mark.parametrize(("suspect", "verdict", "hosts"), [
    pytest.param({"kind": "path", "places": [6, 7]}, {}, {"cb1h7": "not vetted", "cb1h8": "not vetted"}, id="path"),
    pytest.param({"state": "inconclusive"}, {}, {"cb1h7": "not vetted", "cb1h8": "vetted"}, id="inconclusive"),
    pytest.param({"state": "cleared"}, {}, {"cb1h7": "vetted", "cb1h8": "vetted"}, id="cleared"),
    pytest.param({}, {"result": "no verdict", "suspects": []}, NOT_VETTED, id="no verdict"),
    pytest.param({}, {"notes": [f"{TOO_MANY}"], "note_facts": [as_json(TOO_MANY)]}, {"cb1h7": "faulty", "cb1h8": "not vetted"}, id="more"),
])  # fmt: skip
def test_a_slow_path_an_undecided_suspect_and_a_hunt_without_a_verdict_name_no_host(tmp_path: Path, suspect, verdict, hosts) -> None:
    hunt = tmp_path / "hunt"
    shutil.copytree(ROOT / "reports/hunt-host", hunt)
    info = json.loads((hunt / "run.json").read_text())
    info["hunt"]["verdict"]["suspects"][0] |= suspect
    info["hunt"]["verdict"] |= verdict
    (hunt / "run.json").write_text(json.dumps(info))
    verdicts = outcome(criteria(evidence="hunt"), evidence(hunt))[1]
    assert {host: verdicts[host] for host in hosts} == hosts


@pytest.mark.contract
def test_a_simulated_hunt_is_no_evidence(tmp_path: Path) -> None:
    assert run_here(tmp_path, "hunt", "--backend", "simulated", "--ranks", "8", "--out", "hunt").returncode == 0
    judged, hosts = outcome(criteria(evidence="hunt"), evidence(tmp_path / "hunt"))
    assert judged == ["INCOMPLETE"]
    assert set(hosts.values()) == {"not vetted"}


def with_losses(found: LossFigure, **changes: Any) -> Row:
    """A row at 90 % with these counters."""
    return make_row(**{**times(90), "evidence": {"network": msgspec.to_builtins(found.counts)}, **changes})


def figure(pairs: Mapping[str, str], lossy: Sequence[str], sent: int = 10_000) -> LossFigure:
    """Return the counters of hosts with these partners, of which the lossy ones lost 1 % of their packets."""
    lost, none = NetworkCounts(100, sent, 0, 60), NetworkCounts(2, sent, 2, 2)
    return LossFigure("run", {host: lost if host in lossy else none for host in pairs}, pairs, damage=False)


FIRST = {"a": "c", "c": "a", "b": "d", "d": "b"}
SECOND = {"a": "b", "b": "a", "c": "d", "d": "c"}


@pytest.mark.parametrize(("first", "second", "named"), [
    (["a"], ["d"], {"c"}),  # what c gets is lost
    (["c"], ["c"], {"c"}),  # what c sends is lost
    (["a"], [], set()),  # one path: neither end is named
    (["a"], ["a"], {"a"}), (["a", "b", "c", "d"], ["a", "b", "c", "d"], set()),  # everywhere: a switch
    (["a", "c"], ["d", "c"], {"c"}),  # both ways
    (["a", "b"], ["d", "c"], set()),  # to c and to d: what both have in common, such as a switch
    ([], [], set()),
])  # fmt: skip
def test_a_host_is_named_only_by_two_healthy_partners(first: list[str], second: list[str], named: set[str]) -> None:
    assert losing_hosts([figure(FIRST, first), figure(SECOND, second)]).keys() == named


def test_few_packets_show_nothing_and_port_errors_of_several_hosts_name_none() -> None:
    assert not figure(FIRST, [], sent=500).is_clean(["a"])
    assert losing_hosts([figure(FIRST, ["a"]), figure(SECOND, ["d"], sent=500)]) == {}
    bad, good = NetworkCounts(0, 4000, 0, 0, errors={"eth0": {"rx_errors": 400}}), NetworkCounts(0, 4000, 0, 0)
    assert losing_hosts([LossFigure("run", {"h1": bad, "h2": bad}, {}, True)]) == {}
    assert list(losing_hosts([LossFigure("run", {"h1": bad, "h2": good}, {}, True)])) == ["h1"]


def test_a_lossy_path_is_not_excused_by_a_faulty_host_elsewhere(tmp_path: Path) -> None:
    """Packets from a to c are lost, and doctor names b: neither a nor c is vetted, d is."""
    hosts = ["a", "b", "c", "d"]
    row = with_losses(figure(FIRST, ["a"]), operation="p2p_bidirectional", group="0-2,1-3")
    ring = with_losses(figure(FIRST, []), operation="sendrecv")
    run = run_of(tmp_path, row, ring, hosts=hosts, rank_map=[{"host": host} for host in hosts])
    found = evidence(doctor(tmp_path / "doctor.json", hosts, ("severe", "b")), run)
    rules = Criteria(1, "test", {"doctor": Criterion(evidence="doctor"), "losses": Criterion(evidence="losses")})
    assert outcome(rules, found)[1] == {"a": "not vetted", "b": "faulty", "c": "not vetted", "d": "vetted"}


@pytest.mark.parametrize(("file", "line", "wrong", "verdict"), [
    ("events.jsonl", '{"kind": "hang", "text": "rank 1 is missing"}', 0, "INCOMPLETE"),
    ("events.jsonl", '{"kind": "hang", "text": "rank 1 is missing"}', 3, "FAIL"), ("cells.jsonl", '{"operation": 3}', 0, "INCOMPLETE"),
])  # fmt: skip
def test_rows_of_a_run_that_broke_off_or_is_damaged_show_only_wrong_data(tmp_path: Path, file, line, wrong, verdict) -> None:
    run = run_of(tmp_path, make_row(**times(90), wrong=wrong))
    with (run / file).open("a", encoding="utf-8") as lines:
        lines.write(f"{line}\n")
    assert outcome(criteria(**OPERATIONS), evidence(run))[0] == [verdict]


@pytest.mark.parametrize(("errors", "flags", "hosts"), [
    (0, (), {"h1": "vetted", "h2": "vetted"}), (40, ("port_errors",), {"h1": "vetted", "h2": "faulty"}),
    (40, (), {"h1": "vetted", "h2": "vetted"}),  # of a port that carried no data
])  # fmt: skip
def test_rdma_sends_no_tcp_and_a_port_with_errors_names_its_host(tmp_path: Path, errors, flags, hosts) -> None:
    counts = {"h1": NetworkCounts(0, 40, 0, 0), "h2": NetworkCounts(0, 40, 0, 0, errors={"mlx5_0": {"symbol_error": errors}})}
    moved = {
        "iterations": 9, "at_least_bytes": 9, "hosts_left_out": 0, "inside": None, "other_path": None, "path": "network",
        "copied_directly": None, "hosts": {"h1": {"ports": {"mlx5_0": {"port_xmit_data": 10**9}}}},
    }  # fmt: skip
    evidence_of_row = {"network": msgspec.to_builtins(counts), "moved": moved}
    row = make_row(**times(90), evidence=evidence_of_row, flags=flags)
    other = make_row(**times(90), evidence={"network": msgspec.to_builtins({"h1": counts["h1"]}), "moved": moved})
    ranks = [{"host": host} for host in HOSTS]
    runs = run_of(tmp_path, row, rank_map=ranks), run_of(tmp_path / "other", other, rank_map=ranks, hosts=["h1"])
    assert outcome(criteria(evidence="losses"), evidence(*runs))[1] == hosts


@pytest.mark.parametrize(("lossy", "hosts"), [((), "vetted"), (("h1",), "not vetted")])
def test_a_loss_without_a_named_host_fails_the_group(tmp_path: Path, lossy: tuple[str, ...], hosts: str) -> None:
    run = run_of(tmp_path, with_losses(figure({"h1": "h2", "h2": "h1"}, lossy)), rank_map=[{"host": host} for host in HOSTS])
    assert set(outcome(criteria(evidence="losses"), evidence(run))[1].values()) == {hosts}


REACHES = ReachesExpected("gloo", (SeriesCheck("allreduce", "gloo", Reach.REACHED, percent=90.0, checked=1),))


@pytest.mark.parametrize(
    ("cause", "verdict"), [(REACHES, "PASS"), (NothingMeasured(), "INCOMPLETE"), (WrongDataReceived("allreduce"), "FAIL")]
)
def test_the_verdict_of_a_check_counts_and_its_rows_do_not(tmp_path: Path, cause: Any, verdict: str) -> None:
    run = run_of(tmp_path, make_row(**times(10)))
    store_check(CheckAnswer(CheckVerdict((cause,)), run, 2), run)
    assert outcome(criteria(evidence="check"), evidence(run))[0] == [verdict]
    assert outcome(criteria(**OPERATIONS), evidence(run))[0] == ["INCOMPLETE"]


def test_texts_of_files_reach_no_terminal_and_no_hostfile(tmp_path: Path) -> None:
    hosts = ["h1", "h2\x1b[2J", "h3\nh4", "h5"]
    doctor(tmp_path / "doctor.json", hosts, ("severe", "h5"))
    (tmp_path / "one.toml").write_text('schema = 1\ntitle = "one"\n[criteria.doctor]\nevidence = "doctor"\n')
    words = ("--from", "doctor.json", "--criteria", "one.toml", "--html", "page.html", "--vetted", "vetted")
    done = run_here(tmp_path, "certify", *words)
    assert (done.returncode, (tmp_path / "vetted").read_text()) == (1, "h1\n")
    assert "\x1b" not in done.stdout + (tmp_path / "page.html").read_text()


def gated(folder: Path, result: str) -> Path:
    """Store a verdict of the gate on the allocation "new"."""
    (folder / "verdict.json").write_text(to_page(document(gate_verdict(result=result))))
    return folder / "verdict.json"


@pytest.mark.parametrize(("result", "verdict", "hosts"), [
    ("passed", "PASS", "vetted"), ("regression", "FAIL", "not vetted"), ("no verdict", "INCOMPLETE", "vetted"),
])  # fmt: skip
def test_a_gate_that_is_not_required_counts_only_if_it_fails(tmp_path: Path, result: str, verdict: str, hosts: str) -> None:
    found = evidence(run_of(tmp_path, allocation_id="new"), gated(tmp_path, result))
    rules = Criteria(1, "test", {"gate": Criterion(evidence="gate", required=False)})
    assert outcome(rules, found)[0] == [verdict]
    both = Criteria(1, "test", {**criteria(**OPERATIONS).criteria, **rules.criteria}, {"suite": "run quick"})
    assert set(outcome(both, found)[1].values()) == {hosts}
    assert judge(rules, EvidenceSet())[0] == []


@pytest.mark.parametrize(("examined", "measured", "hosts"), [
    (["h1.site", "h2.site"], ["h1", "h2"], {"h1": "vetted", "h2": "faulty"}),
    (["h1", "h2"], ["h1.site", "h2.site"], {"h1.site": "vetted", "h2.site": "faulty"}),
    (["H1", "H2"], ["h1", "h2"], {"h1": "vetted", "h2": "faulty"}),
    (["h2.a", "h2.b"], ["h2.a", "h2.b"], {"h2.a": "vetted", "h2.b": "faulty"}),
])  # fmt: skip
def test_a_host_with_and_without_its_domain_is_one(tmp_path: Path, examined: list[str], measured: list[str], hosts: dict[str, str]) -> None:
    found = evidence(doctor(tmp_path / "doctor.json", examined, ("severe", examined[1])), run_of(tmp_path, hosts=measured))
    rules = Criteria(1, "test", {"doctor": Criterion(evidence="doctor"), **criteria(**OPERATIONS).criteria}, {"suite": "run quick"})
    assert outcome(rules, found)[1] == hosts


def test_a_gate_vets_only_the_hosts_of_the_runs_that_it_judged(tmp_path: Path) -> None:
    required = Criteria(1, "test", {"gate": Criterion(evidence="gate")})
    other = run_of(tmp_path / "other")
    assert outcome(required, evidence(other, gated(tmp_path, "passed"))) == (["INCOMPLETE"], dict.fromkeys(HOSTS, "not vetted"))
    judged = run_of(tmp_path, hosts=HOSTS[:1], allocation_id="new")
    assert outcome(required, evidence(other, judged, gated(tmp_path, "passed")))[1] == {"h1": "vetted", "h2": "not vetted"}
    assert set(outcome(required, evidence(other, gated(tmp_path, "regression")))[1].values()) == {"not vetted"}


# Criteria.


def test_a_sites_file_replaces_single_values(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    changes = "[criteria.operations]\nshare = 0.9\n[steps]\nhunt = 'hunt -n 8'\n"
    site.write_text(f'schema = 1\ntitle = "ours"\nextends = "gpu-cluster"\n{changes}')
    (tmp_path / "more.toml").write_text('schema = 1\nextends = "site.toml"\n[criteria.check]\nused = false\n')
    read = read_criteria(str(tmp_path / "more.toml"))
    assert (read.title, read.criteria["operations"].share, read.criteria["operations"].least_size) == ("ours", 0.9, "64M")
    assert (read.steps["hunt"], read.criteria["check"].used) == ("hunt -n 8", False)
    assert list(read.files) == ["more.toml", "site.toml", "gpu-cluster.toml", "cpu-cluster.toml"]
    assert read.files["site.toml"] == hashlib.sha256(site.read_bytes()).hexdigest()


def test_each_kind_has_the_step_of_each_criterion() -> None:
    for kind in ("cpu-cluster", "gpu-cluster", "host"):
        read = read_criteria(kind)
        assert all(criterion.step in read.steps for criterion in read.criteria.values() if criterion.required), kind


@pytest.mark.parametrize(("text", "reason"), [
    ("schema = 2", "schema"), ("schema = 1", "title"), ('schema = 1\nextends = "bad.toml"', "extend one another"),
    ('schema = 1\nextends = "host"\n[criteria.operations]\nshare = 2', "share"),
    ('schema = 1\nextends = "host"\n[criteria.operations]\nrate = 2', "rate"),
    ('schema = 1\nextends = "host"\n[criteria.operations]\nstep = "none"', "none"),
    ('schema = 1\nextends = "host"\n[criteria.operations]\nleast_size = "1Q"', "1Q"),
    ('schema = 1\nextends = "host"\n[steps]\ncheck = "check \'"', "quotation"), ('schema = 1\nextends = "absent.toml"', "absent.toml"),
    ("schema = ", "cannot be read"),
])  # fmt: skip
def test_criteria_that_are_not_valid_are_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.toml").write_text(text)
    assert reason in one_sentence(run_here(tmp_path, "certify", "--from", str(SAMPLE), "--criteria", "bad.toml"))


# The command.


def certify(folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the certificate of the stored sample."""
    (folder / "certify").symlink_to(SAMPLE)
    done = run_here(folder, "certify", "--from", "certify", "--criteria", "certify/bed.toml", "--out", "out", *words)
    document = json.loads((folder / "out/certificate.json").read_text())
    assert isinstance(document, dict)
    return done.returncode, document


def test_the_stored_acceptance_names_both_faulty_hosts_and_vets_the_others(tmp_path: Path) -> None:
    """Of four hosts one has half the rate, and one loses 1 % of the packets that it gets."""
    code, document = certify(tmp_path, "--vetted", "hosts")
    assert (code, document["verdict"]) == (1, "FAIL")
    verdicts = [(host["host"], host["verdict"]) for host in document["hosts"]]
    assert verdicts == [("cb1h1", "vetted"), ("cb1h2", "faulty"), ("cb1h3", "faulty"), ("cb1h4", "vetted")]
    assert (tmp_path / "hosts").read_text() == "cb1h1\ncb1h4\n"
    page = (tmp_path / "out/certificate.html").read_text()
    assert all(text in page for text in ("cb1h2", "cb1h3", "hunt --backend socket", document["inputs"][0]["sha256"]))
    assert "<script" not in page


def test_a_certificate_fits_its_schema_has_the_digest_of_each_file_and_is_the_same_for_the_same_files(tmp_path: Path) -> None:
    stored = json.loads((ROOT / "collbench/plugins/certify/certificate.schema.json").read_text())
    assert stored == json.loads(json.dumps(schema()))
    _, document = certify(tmp_path)
    Draft202012Validator(schema()).validate(document)
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in SAMPLE.rglob("*.json*")}
    assert {file["sha256"] for file in document["inputs"]} == digests
    assert document["command"] == "collbench certify --from certify --criteria certify/bed.toml --out out"
    parts = ("doctor.json", "hunt", "operations", "pairs", "rings")
    assert document["repeat"] == f"collbench certify --criteria certify/bed.toml --from {' '.join(f'certify/{part}' for part in parts)}"
    words = [*document["repeat"].split()[1:], "--format", "json", "--html", "page.html"]
    again = json.loads(run_here(tmp_path, *words).stdout)
    assert {**again, "command": ""} == {**document, "command": ""}


def test_a_table_is_printed_and_only_the_page_is_written(tmp_path: Path) -> None:
    done = run_here(tmp_path, "certify", "--from", str(SAMPLE), "--html", "page.html", "--format", "csv")
    assert done.stdout.startswith("run,criterion,verdict,subject")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_missing_evidence_has_exit_code_3_and_its_command(tmp_path: Path) -> None:
    run_of(tmp_path)
    done = run_here(tmp_path, "certify", "--from", "run", "--html", "page.html")
    assert done.returncode == 3
    assert "collbench doctor --format json" in done.stdout


@pytest.mark.parametrize(("words", "reason"), [
    (("--from", "absent"), "absent"), (("--from", "notes.json"), "is not evidence"), (("--from", "run", "run"), "twice"),
    (("--from", "run", "--sign", "absent"), "absent"), (("--from", "run", "--vetted", "absent/hosts"), "absent"),
    (("--hosts", "h[1-2]"), "--launcher"), (("--launcher", "mpirun -n {nodes}"), "{hosts}"),
    (("--hosts", "h[1-", "--launcher", "mpirun -host {hosts}"), "--hosts"), (("--out", "run"), "--resume"),
    # what would certify nothing
    (("--from", "run", "--criteria", "none.toml"), "no criterion is required"), (("--from", "run", "--criteria", "blank.toml"), "is blank"),
    (("--from", "run", "--sign", "key", "--html", "page.html"), "--out DIR"),
    (("--from", "run", "--hosts", "n[1-16]"), "leave out --hosts"),
])  # fmt: skip
def test_bad_input_is_one_sentence(tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    run_of(tmp_path)
    (tmp_path / "notes.json").write_text("{}")
    (tmp_path / "none.toml").write_text('schema = 1\ntitle = "none"\n[criteria]\n')
    (tmp_path / "blank.toml").write_text('schema = 1\ntitle = "x"\n[steps]\nx = " "\n[criteria.doctor]\nevidence = "doctor"\n')
    (tmp_path / "key").write_text("a key")
    assert reason in one_sentence(run_here(tmp_path, "certify", *words))


# Steps.


def test_a_launcher_gets_the_hosts_and_an_allocation_without_srun_certifies_no_single_host(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = StepLauncher.of("mpirun -n {nodes} -host {hosts}", "h[1-3]", {})
    line = launcher.line(["h1", "h3"], ["hunt", "--out", "x"])
    assert (line[:5], line[-3:]) == (["mpirun", "-n", "2", "-host", "h1,h3"], ["hunt", "--out", "x"])
    monkeypatch.setattr("collbench.plugins.certify.steps.waits_for_srun", lambda env: True)
    monkeypatch.setattr("collbench.plugins.certify.steps.srun_line", lambda env: None)
    with pytest.raises(UsageError, match="srun is not in PATH"):
        StepLauncher.of(None, None, {})


@pytest.mark.contract
def test_complete_steps_are_not_measured_again(tmp_path: Path) -> None:
    """A launcher that does not exist would be an error; with other hosts or another command, the step would start."""
    row, words = make_row(**times(90)), ["allreduce", "--quiet"]
    store(tmp_path / "pairs", [row], hosts=HOSTS, command=["collbench", *words, "--out", "pairs"])
    rules = msgspec.structs.replace(criteria(**OPERATIONS), steps={"pairs": "allreduce --quiet", "suite": ""})
    launcher = StepLauncher(["/absent/launcher"], ("h1.site", "h2.site"))
    assert len(run_steps(rules, tmp_path, launcher).runs) == 1
    with pytest.raises(UsageError, match="absent"):
        run_steps(rules, tmp_path, StepLauncher(launcher.words, ("h1", "h2", "h3")))
    with pytest.raises(UsageError, match="absent"):
        run_steps(msgspec.structs.replace(rules, steps={"pairs": "allreduce"}), tmp_path, launcher)


# Evidence that must not pass, and hosts that must not be named.


def test_a_slow_link_between_groups_names_no_host() -> None:
    judgements, hosts = judge(criteria(evidence="hunt"), evidence(ROOT / "reports/hunt-trunk"))
    assert any(judgement.verdict == "FAIL" for judgement in judgements)
    assert "faulty" not in {host.verdict for host in hosts}


@pytest.mark.parametrize(("fields", "info"), [
    ({"backend": "simulated"}, {}), ({"ceiling": Ceiling("given", 1e3, "the ceiling given")}, {}), ({}, {"slowed": "by=10%"}),
], ids=["simulated", "typed rate", "slowed on purpose"])  # fmt: skip
def test_a_check_that_shows_nothing_about_the_hardware_passes_nothing(tmp_path: Path, fields: dict[str, Any], info: dict[str, Any]) -> None:
    run = run_of(tmp_path, make_row(**{**times(90), **fields}), **info)
    store_check(CheckAnswer(CheckVerdict((REACHES,)), run, 2), run)
    assert outcome(criteria(evidence="check"), evidence(run)) == (["INCOMPLETE"], dict.fromkeys(HOSTS, "not vetted"))


@pytest.mark.parametrize("fields", [times(30), {**times(90), "wrong": 3}], ids=["slow", "wrong data"])
def test_a_failure_shared_with_a_faulty_host_vets_no_other(tmp_path: Path, fields: dict[str, Any]) -> None:
    doctor(tmp_path / "doctor.json", HOSTS, ("severe", "h1"))
    rows = [make_row(**times(90)), make_row(**{**fields, "operation": "allgather"})]
    rules = criteria(**{**OPERATIONS, "operations": ("allreduce", "allgather")})
    rules.criteria["doctor"] = Criterion(evidence="doctor")
    found = evidence(tmp_path / "doctor.json", run_of(tmp_path, *rows))
    assert outcome(rules, found)[1] == {"h1": "faulty", "h2": "not vetted"}


@pytest.mark.parametrize("row", [
    make_row(1 << 27, **{**times(90), "na": "out of memory", "n": 0}), make_row(**{**times(20), "backend": "mpi", "device": "cuda"}),
    make_row(**{**times(90), "nodes": 1}),
], ids=["a size without a figure", "another device", "inside one host"])  # fmt: skip
def test_a_fast_row_hides_no_other_one(tmp_path: Path, row: Any) -> None:
    run = run_of(tmp_path, make_row(**{**times(90), "device": "cpu"}), row)
    judged, hosts = outcome(criteria(**OPERATIONS), evidence(run))
    assert "PASS" in judged and len(judged) == 2 and set(hosts.values()) == {"not vetted"}


def test_a_host_that_was_to_be_measured_and_is_nowhere_is_not_vetted(tmp_path: Path) -> None:
    found = EvidenceSet(requested=("h1.example.org", "h2", "h3"))
    found.add(run_of(tmp_path))
    assert outcome(criteria(**OPERATIONS), found)[1] == {"h1": "vetted", "h2": "vetted", "h3": "not vetted"}
