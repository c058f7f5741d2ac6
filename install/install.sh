#!/bin/sh
# install.sh PREFIX [--python PYTHON] [--extras mpi,report] [--module NAME]...   installs collbench next to a site's own torch and MPI.
#
# PREFIX then holds an environment that sees everything PYTHON sees (venv), the command (bin), modulefiles and completions. Neither torch nor
# mpi4py, nor what MPI and CUDA brought to PYTHON, is replaced: pip is held to the versions that are there, and it is looked up afterwards.
# All else has the tested versions (constraints.txt). Beside the wheels that wheelhouse.sh collected it needs no network.
#   --python   the site's Python, of 3.11 or newer, with its modules loaded (default: python3); it may be of a venv, conda or a module
#   --extras   mpi, report, cuda12, cuda13 (default: mpi)
#   --module   a module that collbench's loads first, like openmpi/5.0.8: the MPI and torch that were loaded for this install
set -eu
export PYTHONNOUSERSITE=1 # what lies in the home of whoever installs is not the site's

here=$(cd "$(dirname "$0")" && pwd)
python=python3 extras=mpi modules='' prefix=''

say() { printf 'collbench: %s\n' "$*" >&2; }
stop() {
    say "$*"
    exit 2
}

usage() { stop "$1: install.sh PREFIX [--python PYTHON] [--extras mpi,report] [--module NAME]..., like install.sh /apps/collbench/1"; }

read_words() {
    while [ $# -gt 0 ]; do
        case $1 in
        --python | --extras | --module)
            [ $# -gt 1 ] || usage "$1 wants a word behind it"
            case $1 in
            --python) python=$2 ;;
            --extras) extras=$2 ;;
            --module) modules="$modules $2" ;;
            esac
            shift
            ;;
        -*) usage "there is no option $1" ;;
        *)
            [ -z "$prefix" ] || usage "'$1' is one word too many"
            prefix=$1
            ;;
        esac
        shift
    done
}

check_words() {
    case $prefix in
    /*) ;;
    '') usage "where to is not said" ;;
    *) stop "PREFIX '$prefix' is no whole path: modulefiles name it, so begin it with /" ;;
    esac
    # they are written into modulefiles, where quotes, blanks and $ would be code
    case "$prefix" in *[!A-Za-z0-9._/+-]*) stop "PREFIX '$prefix' has letters that modulefiles cannot quote alike: use A-Z a-z 0-9 . _ / + -" ;; esac
    case "$modules" in *[!A-Za-z0-9._/+\ -]*) stop "--module$modules: a module's name has A-Z a-z 0-9 . _ / + - alone" ;; esac
    for extra in $(echo "$extras" | tr ',' ' '); do
        case $extra in
        mpi | report | cuda12 | cuda13) ;;
        *) stop "--extras $extra: a site install takes mpi, report, cuda12 or cuda13; torch, mpich and openmpi would come beside the site's own" ;;
        esac
    done
}

check_python() {
    command -v "$python" >/dev/null || stop "$python is not there: load the site's Python module, or say --python /path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        stop "$python is $("$python" -V 2>&1 || echo broken), and collbench needs 3.11 or newer: load a newer Python, or say --python"
    "$python" -P -c 'import ensurepip, venv' 2>/dev/null ||
        stop "$python cannot make environments (no ensurepip): install the system's python3-venv, or say --python with another one"
}

undo() { # whatever stopped half-way
    rm -rf "$work"
    [ -z "$made" ] || rm -rf "${prefix:?}/venv" "${prefix:?}/bin" "${prefix:?}/modulefiles" "${prefix:?}/share"
    [ -z "$made" ] || rmdir "$prefix" 2>/dev/null || :
}

make_place() {
    [ -z "$(ls -A "$prefix" 2>/dev/null)" ] || stop "$prefix is not empty: choose another PREFIX, one per version, or remove what is there first"
    { mkdir -p "$prefix" && [ -w "$prefix" ]; } 2>/dev/null ||
        stop "$prefix cannot be written: choose a PREFIX where you may, or ask whoever looks after $(dirname "$prefix")"
    made=1
    trap undo EXIT
    trap 'exit 130' INT HUP TERM
    work=$(mktemp -d)
}

# Of a venv an environment sees only the Python below it, so the venv's packages are named: a path file, read after the environment's own.
site_packages='import sys, sysconfig
if sys.prefix != sys.base_prefix: print(*dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")), sep="\n")'

make_environment() {
    "$python" -P -c "$site_packages" >"$work/site"
    if [ -s "$work/site" ] && ! grep -q 'include-system-site-packages *= *true' "$(sed -n 1p "$work/site")/../../../pyvenv.cfg"; then
        "$python" -P -m venv "$prefix/venv"
    else
        "$python" -P -m venv --system-site-packages "$prefix/venv"
    fi
    # the setuptools that Python 3.11 puts there would hide the site's, which torch may need; pip builds in an environment of its own
    "$prefix/venv/bin/python" -P -m pip uninstall -q -y --disable-pip-version-check setuptools
    [ ! -s "$work/site" ] || cp "$work/site" "$("$prefix/venv/bin/python" -P -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/site.pth"
}

check_sums() { # every file of the wheelhouse is as wheelhouse.sh left it, and none was added
    [ -e "$here/SHA256SUMS" ] || stop "$here/SHA256SUMS is missing: copy the whole wheelhouse"
    (cd "$here" && sha256sum --check --strict --quiet SHA256SUMS) >"$work/sums" 2>&1 ||
        stop "$here has changed since wheelhouse.sh wrote it ($(head -n 1 "$work/sums")): copy it again"
    (cd "$here" && find . -type f ! -name SHA256SUMS | sort) >"$work/there"
    sed 's/^[^ ]* [ *]//' "$here/SHA256SUMS" | sort | comm -13 - "$work/there" >"$work/added"
    [ ! -s "$work/added" ] || stop "$here holds a file that SHA256SUMS does not name ($(head -n 1 "$work/added")): copy the wheelhouse again"
}

lay_source() { # what pip installs, in $source: the archive of a wheelhouse, else a copy of this checkout, which pip would build in
    set -- "$here"/collbench-*.tar.gz
    if [ -e "$1" ]; then
        source=$1 tested=$here/constraints.txt where="--no-index --find-links $here"
        case "$here" in *[[:space:]]*) stop "the wheelhouse $here has a blank in its path: move it, pip takes paths apart there" ;; esac
        check_sums
    else
        source=$work/source tested=$here/../constraints.txt where=''
        mkdir "$source"
        (cd "$here/.." && cp -R pyproject.toml setup.py MANIFEST.in README.md LICENSE collbench cuda_kernels "$source")
    fi
}

kept_names() { [ -s "$work/before" ] && cut -f1 "$work/before" | paste -sd ' ' - || echo 'no torch and no mpi4py are there'; }

install_it() {
    "$prefix/venv/bin/python" "$here/kept.py" >"$work/before"
    "$prefix/venv/bin/python" "$here/kept.py" "$tested" >"$work/constraints.txt"
    # for the environment in which pip builds collbench; newer pips want it by another name
    export PIP_CONSTRAINT="$work/constraints.txt" PIP_BUILD_CONSTRAINT="$work/constraints.txt"
    # shellcheck disable=SC2086  # $where is several words
    "$prefix/venv/bin/python" -P -m pip install -q --disable-pip-version-check $where -c "$work/constraints.txt" "${source}[$extras]" ||
        stop "pip could not install beside what the site keeps ($(kept_names)), see above; nothing is left in $prefix"
    "$prefix/venv/bin/python" "$here/kept.py" >"$work/after"
    # what was there before is there, at its place; mpi4py may have come new
    grep -Fxv -f "$work/after" "$work/before" >"$work/lost" || :
    [ ! -s "$work/lost" ] || stop "pip replaced $(tr '\t\n' ' ' <"$work/lost"), so the install was undone: tell collbench's authors"
}

write_files() {
    mkdir -p "$prefix/bin" "$prefix/modulefiles/collbench" "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions"
    cp "$here/collbench" "$prefix/bin/collbench"
    chmod 755 "$prefix/bin/collbench"
    version=$("$prefix/bin/collbench" --version | cut -d ' ' -f 2)
    "$prefix/bin/collbench" completion bash >"$prefix/share/bash-completion/completions/collbench"
    "$prefix/bin/collbench" completion zsh >"$prefix/share/zsh/site-functions/_collbench"
    for kind in lua tcl; do
        lines=''
        for module in $modules; do
            case $kind in
            lua) lines="${lines}depends_on(\"$module\")  -- what it was installed beside is what it measures\\n" ;;
            tcl) lines="${lines}if { ![is-loaded $module] } { module load $module } ;# what it was installed beside is what it measures\\n" ;;
            esac
        done
        file=$prefix/modulefiles/collbench/$version
        [ $kind = tcl ] || file=$file.lua
        sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" -e "s|^@MODULES@\$|$lines|" "$here/modulefiles/collbench.$kind" >"$file"
    done
}

tell() {
    say "$prefix/bin/collbench $version is there; kept as the site has it: $(kept_names)"
    set -- "$prefix"/venv/lib*/python*/site-packages/collbench/native/_loop.so
    [ -e "$1" ] || say "no C compiler worked, so the timing loop runs in Python (rows say python_loop): load gcc, remove $prefix, install again"
    "$prefix/bin/collbench" backends
}

made='' work=''
read_words "$@"
check_words
check_python
make_place
make_environment
lay_source
install_it
write_files
tell
made=''
