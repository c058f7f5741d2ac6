"""A real Prometheus server that scrapes one address, on a free port of this host, until the test has ended."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from collbench.addresses import free_port
from tests.conftest import cannot

_DEADLINE_S = 40.0
_EVERY_S = 1


class Prometheus:
    """The server: `with Prometheus(folder, "127.0.0.1:9823") as server`. The test is skipped where Prometheus is not installed."""

    def __init__(self, folder: Path, target: str, configuration: str | None = None) -> None:
        self.target, self.port = target, free_port("127.0.0.1")
        self._folder = folder
        self._text = configuration or (
            f"global: {{scrape_interval: {_EVERY_S}s, scrape_timeout: {_EVERY_S}s}}\n"
            f"scrape_configs: [{{job_name: collbench, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )

    def __enter__(self) -> Prometheus:
        program = shutil.which("prometheus")
        if program is None:
            cannot("no Prometheus here: `apt install prometheus` brings it")
        self._folder.mkdir(parents=True, exist_ok=True)
        settings = self._folder / "prometheus.yml"
        settings.write_text(self._text)
        options = [f"--config.file={settings}", f"--storage.tsdb.path={self._folder / 'data'}"]
        self._process = subprocess.Popen(
            [program, *options, f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"], stderr=subprocess.PIPE, text=True
        )
        try:
            self._wait()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def get(self, path: str, **values: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.port}{path}?{urlencode(values)}", timeout=10) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success"
        return answer["data"]

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        found = self.get("/api/v1/query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def query_range(self, expression: str, seconds: int = 60) -> list[Mapping[str, Any]]:
        now = time.time()
        found: list[Mapping[str, Any]] = self.get(
            "/api/v1/query_range", query=expression, start=str(now - seconds), end=str(now), step="1"
        )["result"]
        return found

    def label_values(self, label: str, match: str) -> list[str]:
        values: list[str] = self.get(f"/api/v1/label/{label}/values", **{"match[]": match})
        return values

    def _wait(self) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._process.communicate()[1]
            try:
                if any(value == 1 for _, value in self.query("up")):
                    return
            except (URLError, OSError):
                pass
            time.sleep(0.1)
        raise AssertionError(f"Prometheus did not scrape {self.target} within {_DEADLINE_S:.0f} s")
