"""docs/guides/dashboard.md from its first command to its last, with a real Prometheus and a real PostgreSQL server.

Its blocks `sh` and `console` run in one folder, in their order; its files (`# NAME` or `-- NAME` in the first line) are written before.
A network namespace of its own has the ports of the guide.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import cannot
from tests.pages import ROOT
from tests.plugins.store.postgresql import USER, NoServer, server

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

GUIDE = ROOT / "docs" / "guides" / "dashboard.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ASK = """\
for attempt in $(seq 400); do
    curl --silent 'http://127.0.0.1:9090/api/v1/query?query=collbench_busbw_bytes_per_second' >answer.json || true
    grep --quiet '"metric"' answer.json && break
    sleep 0.2
done
"""


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(GUIDE.read_text(encoding="utf-8"))


def files() -> dict[str, str]:
    found = {}
    for language, text in blocks():
        name = re.match(r"(?:#|--) (\S+)\n", text)
        if language in ("yaml", "sql"):
            assert name, text
            found[name[1]] = text
    return found


def commands() -> list[str]:
    found: list[str] = []
    for language, text in blocks():
        if language == "console":
            found += [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        elif language == "sh":
            found += [line for line in text.splitlines() if line and not line.startswith("#")]
    return found


def test_the_files_of_grafana_are_valid_and_fit_the_dashboards() -> None:
    found = {name: yaml.safe_load(text) for name, text in files().items() if name.endswith(".yaml")}
    (provider,) = found["/etc/grafana/provisioning/dashboards/collbench.yaml"]["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards/collbench"
    sources = found["/etc/grafana/provisioning/datasources/collbench.yaml"]["datasources"]
    written = [json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")]
    assert {each["type"] for each in sources} == {board["templating"]["list"][0]["query"] for board in written}


def test_every_command_works_and_the_servers_have_the_figures(tmp_path: Path) -> None:
    missing = [name for name in ("prometheus", "promtool", "curl", "createdb", "psql", "unshare", "ip") if shutil.which(name) is None]
    if missing:
        cannot(f"no {' and '.join(missing)} here")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        cannot("network namespaces need root")
    (tmp_path / "reports").symlink_to(ROOT / "reports")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "collbench"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P -m collbench "$@"\n')
    program.chmod(0o755)
    for name, text in files().items():
        if not name.startswith("/"):
            (tmp_path / name).write_text(text.replace("scrape_interval: 1m", "scrape_interval: 5s"))
    script = "\n".join(["set -ex", "ip link set lo up", *commands(), ASK, "kill $(jobs -p)"])
    try:
        with server() as running:
            env = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "PGHOST": str(running.folder)}
            line = ["timeout", "240", "unshare", "--net", "--pid", "--fork", "--kill-child", "bash", "-c", script]
            done = subprocess.run(line, cwd=tmp_path, env=env | {"PGUSER": USER}, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            assert running.sql("SET ROLE grafana; SELECT count(*) > 100 FROM collbench.history", "collbench") == "t"
    except NoServer as why:
        cannot(why)
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert {each["metric"]["node"] for each in answer["data"]["result"]} >= {"cb1h1", "cb1h2"}
    written = {path.name for path in (tmp_path / "dashboards").iterdir()}
    assert {"fleet-prometheus.json", "gate-postgresql.json"} <= written
