"""The documentation site, built as `make docs` does."""

import os
import subprocess
from pathlib import Path

from tests.conftest import ROOT, cannot

PYTHON = ROOT / ".venv-docs/bin/python"


def built(folder: Path) -> Path:
    """Build the site into a folder, and return the folder; skip the test where mkdocs is missing."""
    if not PYTHON.exists():
        cannot("no mkdocs here: `make docs-environment` brings it into .venv-docs")
    command = [str(PYTHON), "-P", "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
