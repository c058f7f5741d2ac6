"""The files that GitHub, pre-commit and citations read: valid by their schemas, and pointing at what exists."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"
WORKFLOWS = (*sorted(GITHUB.glob("workflows/*.yml")), ROOT / "slurm/github/gate.yml")
FORMS = [path for path in sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) if path.name != "config.yml"]
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md", "ARCHITECTURE.md")


def check(schema: str, *files: Path) -> int:
    line = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    return subprocess.run(line, capture_output=True, timeout=60, check=False).returncode


@pytest.mark.system
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_files_follow_their_schema(schema: str, tmp_path: Path) -> None:
    assert SCHEMAS[schema] and check(schema, *SCHEMAS[schema]) == 0
    (tmp_path / "wrong.yml").write_text("jobs: 3\nbody: 3\nblank_issues_enabled: 3\n")
    assert check(schema, tmp_path / "wrong.yml") == 1


def workflow(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in workflow(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_read_only_pins_its_actions_and_has_time_limits(path: Path) -> None:
    assert workflow(path)["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow(path)["jobs"].values())
    assert all(re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", step["uses"]) for step in steps(path) if "uses" in step)
    assert all("${{" not in step.get("run", "") for step in steps(path))  # untrusted names reach a shell only as variables


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_and_scripts_that_exist(path: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in steps(path))
    targets = {words[-1] for line in commands.splitlines() if (words := line.split())[:1] == ["make"]}
    assert targets <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert all((ROOT / name).exists() for name in re.findall(r"^\s*((?:\.ci|slurm|tools)/[\w.-]+)", commands, re.MULTILINE))


def test_only_the_publishing_job_may_write_and_it_stores_no_token() -> None:
    jobs = workflow(GITHUB / "workflows/release.yml")["jobs"]
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["permissions"] == {"contents": "write", "id-token": "write"} and jobs["publish"]["needs"] == "dist"
    assert "secrets." not in (GITHUB / "workflows/release.yml").read_text()


def test_pre_commit_runs_programs_of_make_lint_without_a_download() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    assert all(" ".join(hook["entry"].split()[:2]).removesuffix(" .") in lint for hook in repos[0]["hooks"])


def test_the_devcontainer_uses_a_target_of_make() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert f"\n{container['postCreateCommand'].removeprefix('make ')}:" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", PAGES)
def test_links_of_a_page_exist(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_changelog_has_unreleased_first_and_only_the_headings_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", release) for release in releases[1:])
    for section in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert len(kinds) == len(set(kinds)) and set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
