"""The memory that this host and its container can still give."""

from types import SimpleNamespace

import psutil
import pytest

from collbench.measuring.memory import free_memory


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("1000", "400", 600), ("1000", "1200", 0), ("9000", "400", 5000), ("max", "400", 5000), (None, None, 5000)],
)
def test_a_containers_limit_counts(monkeypatch, tmp_path, limit, used, free):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5000))
    for name, text in (("memory.max", limit), ("memory.current", used)):
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    assert free_memory(tmp_path) == free
