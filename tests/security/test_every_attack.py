"""The 104 attacks of the security review, and the test of each.

| attacks | on |
|---|---|
| 1 to 16 | the control plane: unknown peers at rank 0's port, floods, secrets |
| 17 to 20 | the measured libraries: what they open is listed in docs/reference/ports.md |
| 21 to 74 | files: tarballs, XML, JSON, texts, run folders, suites, pages, plug-ins |
| 75 to 104 | scripts: `emit`, the current folder, Slurm's hooks, verdicts in every form |
"""

import ast
from functools import cache

import pytest

from tests.cli.command import ROOT
from tests.conftest import needs_plugin

_HERE = "tests/security/"
_EMIT = "tests/plugins/deploy/test_security.py"
_STRANGERS = "tests/control/test_strangers.py::"
_TARBALLS = f"{_HERE}test_files.py::TestTarballs::"
_OURS = f"{_HERE}test_control_plane.py::"
_SECRET = "tests/control/test_secret.py::"

TESTS: dict[int, str] = {
    1: f"{_STRANGERS}test_a_foreign_connection_is_refused_and_reported",
    2: f"{_STRANGERS}test_a_frame_longer_than_any_of_ours_closes_the_connection_before_it_is_kept",
    3: f"{_STRANGERS}test_a_foreign_connection_is_refused_and_reported",
    4: f"{_STRANGERS}test_a_foreign_connection_is_refused_and_reported",
    **dict.fromkeys((5, 6, 7), f"{_HERE}test_floods.py::test_a_launch_passes_while_foreign_connections_are_open"),
    8: "tests/control/test_secret.py::test_a_foreign_connection_is_reported_and_no_secret_is",
    9: f"{_OURS}test_9_the_folder_of_a_launch_is_private",
    10: f"{_SECRET}test_a_file_that_others_can_read_or_have_made_is_none",
    11: "tests/results/test_environment.py::test_secrets_and_unknown_variables_are_not",
    12: f"{_OURS}test_12_rank_0_listens_at_the_meetings_address_alone", 13: f"{_OURS}test_13_nothing_that_is_read_is_executed",
    14: f"{_OURS}test_a_folder_of_another_user_is_rejected", 15: f"{_OURS}test_a_folder_of_another_user_is_rejected",
    16: f"{_SECRET}test_the_folder_of_last_resort_is_checked_and_its_links_are_not_followed",
    **dict.fromkeys((17, 18, 19), f"{_OURS}test_17_to_19_torchs_store_of_one_host_is_not_open_to_other_hosts"),
    20: "tests/backends/test_socket.py::test_a_foreign_connection_is_rejected_and_the_right_rank_accepted",
    **dict.fromkeys((21, 22, 23, 24, 32, 33), f"{_TARBALLS}test_members_stay_inside"),
    **dict.fromkeys(range(25, 31), f"{_TARBALLS}test_bombs_take_little_memory"), 31: f"{_TARBALLS}test_31_a_sparse_file_of_a_tebibyte",
    34: f"{_TARBALLS}test_34_a_forest_of_symbolic_links",
    **dict.fromkeys(range(35, 41), f"{_HERE}test_files.py::test_hostile_xml_is_rejected"),
    **dict.fromkeys(range(41, 46), f"{_HERE}test_files.py::test_hostile_json_is_rejected"),
    **dict.fromkeys(range(46, 50), f"{_HERE}test_files.py::test_long_lines_take_no_time"),
    **dict.fromkeys(range(50, 59), f"{_HERE}test_files.py::test_run_folders_are_read_as_untrusted_data"),
    **dict.fromkeys(range(59, 63), f"{_HERE}test_files.py::test_hostile_suites_are_rejected_in_one_sentence"),
    **dict.fromkeys(range(63, 67), f"{_HERE}test_reports.py::test_untrusted_markup_is_not_markup_of_the_page"),
    67: f"{_HERE}test_reports.py::test_67_a_formula_is_text_in_csv", 68: f"{_HERE}test_reports.py::test_68_no_metric_is_forged",
    69: f"{_HERE}test_reports.py::test_69_markdown_has_no_untrusted_markup",
    70: f"{_HERE}test_reports.py::test_70_a_line_break_makes_no_row_of_csv",
    71: f"{_HERE}test_reports.py::test_71_no_terminal_is_steered_and_no_command_of_ci_begins",
    **dict.fromkeys((72, 73), f"{_HERE}test_reports.py::test_72_and_73_no_line_of_a_hunt_runs_another_command"),
    **dict.fromkeys((74, 93), f"{_HERE}test_current_folder.py::test_no_module_of_the_current_folder_runs"),
    **dict.fromkeys(range(75, 93), f"{_EMIT}::test_no_word_runs"),
    94: f"{_HERE}test_current_folder.py::test_none_runs_in_a_hook_that_starts_there",
    **dict.fromkeys((95, 96, 97), f"{_HERE}test_slurm_scripts.py::test_the_job_runs_its_own_program_in_any_folder"),
    98: f"{_HERE}test_current_folder.py::test_a_program_of_the_current_folder_is_not_found_by_a_hook",
    99: f"{_HERE}test_slurm_scripts.py::test_a_hook_of_root_rejects_files_that_another_user_can_change",
    100: "tests/device/test_compile.py::test_a_broken_or_foreign_file_is_compiled_anew",
    **dict.fromkeys(range(101, 105), f"{_HERE}test_reports.py::test_an_untrusted_verdict_is_text"),
}  # fmt: skip


@cache
def names(path: str) -> set[str]:
    found = set[str]()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def _listed(test: str) -> object:
    return pytest.param(test, marks=[needs_plugin("deploy")] if test.startswith(_EMIT) else [], id=test)


def test_every_attack_has_a_test() -> None:
    assert sorted(TESTS) == list(range(1, 105))


@pytest.mark.parametrize("test", [_listed(test) for test in sorted(set(TESTS.values()))])
def test_it_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in names(path)
