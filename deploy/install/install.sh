#!/bin/sh
# install.sh PREFIX [--python PYTHON] [--extras mpi,report] [--module NAME]...   installs collbench next to a site's own torch and MPI.
#
# Creates in PREFIX an environment that includes the packages of PYTHON (venv), the command (bin), modulefiles and completions. The versions of
# torch, mpi4py and the packages of MPI and CUDA in PYTHON are kept: pip gets them as constraints, and the result is checked afterwards.
# Other packages get the tested versions (constraints.txt). In a folder of wheels made by wheelhouse.sh, no network is needed.
#   --python   the site's Python, 3.11 or newer, with its modules loaded (default: python3): the system's, or of a module, conda or a venv
#   --extras   mpi, report, cuda12, cuda13 (default: mpi)
#   --module   a module that collbench's module loads first, such as openmpi/5.0.8: the MPI and torch that are loaded for this install
set -eu
export PYTHONNOUSERSITE=1 # packages in the user's home directory are not the site's

here=$(cd "$(dirname "$0")" && pwd)
python=python3 extras=mpi modules='' prefix=''

message() { printf 'collbench: %s\n' "$*" >&2; }
stop() {
    message "$*"
    exit 2
}

usage() { stop "$1: install.sh PREFIX [--python PYTHON] [--extras mpi,report] [--module NAME]..., e.g. install.sh /apps/collbench/1"; }

read_words() {
    while [ $# -gt 0 ]; do
        case $1 in
        --python | --extras | --module)
            [ $# -gt 1 ] || usage "$1 needs a value"
            case $1 in
            --python) python=$2 ;;
            --extras) extras=$2 ;;
            --module) modules="$modules $2" ;;
            esac
            shift
            ;;
        -*) usage "unknown option $1" ;;
        *)
            [ -z "$prefix" ] || usage "unexpected argument '$1'"
            prefix=$1
            ;;
        esac
        shift
    done
}

check_words() {
    case $prefix in
    /*) ;;
    '') usage "PREFIX is missing" ;;
    *) stop "PREFIX '$prefix' is not an absolute path: modulefiles need one, so begin it with /" ;;
    esac
    # these values are written into modulefiles, where quotes, blanks and $ would be code
    case "$prefix" in *[!A-Za-z0-9._/+-]*) stop "PREFIX '$prefix' has characters that are unsafe in modulefiles: use only A-Z a-z 0-9 . _ / + -" ;; esac
    case "$modules" in *[!A-Za-z0-9._/+\ -]*) stop "--module$modules: not a valid module name: use only A-Z a-z 0-9 . _ / + -" ;; esac
    for extra in $(echo "$extras" | tr ',' ' '); do
        case $extra in
        mpi | report | cuda12 | cuda13) ;;
        *) stop "--extras $extra: choose from mpi, report, cuda12, cuda13; other extras would add a second torch or MPI to the site's" ;;
        esac
    done
}

check_python() {
    command -v "$python" >/dev/null || stop "$python not found: load the site's Python module, or use --python /path/to/python3"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        stop "$python is $("$python" -V 2>&1 || echo broken), but collbench needs 3.11 or newer: load a newer Python, or use --python"
    "$python" -P -c 'import ensurepip, venv' 2>/dev/null ||
        stop "$python cannot make environments (no ensurepip): install the system's python3-venv, or use another Python with --python"
}

undo() { # remove an incomplete install
    rm -rf "$work"
    [ -z "$made" ] || rm -rf "${prefix:?}/venv" "${prefix:?}/bin" "${prefix:?}/modulefiles" "${prefix:?}/share"
    [ -z "$made" ] || rmdir "$prefix" 2>/dev/null || :
}

make_place() {
    [ -z "$(ls -A "$prefix" 2>/dev/null)" ] || stop "$prefix is not empty: choose another PREFIX, one per version, or remove what is there first"
    { mkdir -p "$prefix" && [ -w "$prefix" ]; } 2>/dev/null ||
        stop "$prefix is not writable: choose another PREFIX, or ask the administrator for write access to $(dirname "$prefix")"
    made=1
    trap undo EXIT
    trap 'exit 130' INT HUP TERM
    work=$(mktemp -d)
}

# An environment made from a venv does not include the venv's packages, so a path file adds them, after the environment's own packages.
site_packages='import sys, sysconfig
if sys.prefix != sys.base_prefix: print(*dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")), sep="\n")'

make_environment() {
    "$python" -P -c "$site_packages" >"$work/site"
    if [ -s "$work/site" ] && ! grep -q 'include-system-site-packages *= *true' "$(sed -n 1p "$work/site")/../../../pyvenv.cfg"; then
        "$python" -P -m venv "$prefix/venv"
    else
        "$python" -P -m venv --system-site-packages "$prefix/venv"
    fi
    # The setuptools that Python 3.11 installs there would hide the site's, which torch may need. pip builds in an isolated environment.
    "$prefix/venv/bin/python" -P -m pip uninstall -q -y --disable-pip-version-check setuptools
    [ ! -s "$work/site" ] || cp "$work/site" "$("$prefix/venv/bin/python" -P -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/site.pth"
}

check_sums() { # check that no file of the wheelhouse has been changed or added
    [ -e "$here/SHA256SUMS" ] || stop "$here/SHA256SUMS is missing: copy the whole wheelhouse"
    (cd "$here" && sha256sum --check --strict --quiet SHA256SUMS) >"$work/sums" 2>&1 ||
        stop "$here has changed since wheelhouse.sh wrote it ($(head -n 1 "$work/sums")): copy it again"
    (cd "$here" && find . -type f ! -name SHA256SUMS | sort) >"$work/there"
    sed 's/^[^ ]* [ *]//' "$here/SHA256SUMS" | sort | comm -13 - "$work/there" >"$work/added"
    [ ! -s "$work/added" ] || stop "$here holds a file that SHA256SUMS does not name ($(head -n 1 "$work/added")): copy the wheelhouse again"
}

lay_source() { # set $source to what pip installs: the archive of a wheelhouse, else a copy of this checkout, since pip builds in its source folder
    set -- "$here"/collbench-*.tar.gz
    if [ -e "$1" ]; then
        source=$1 tested=$here/constraints.txt where="--no-index --find-links $here"
        case "$here" in *[[:space:]]*) stop "the path of the wheelhouse has a blank ($here), which pip does not accept: move the wheelhouse" ;; esac
        check_sums
    else
        source=$work/source tested=$here/../../constraints.txt where=''
        mkdir "$source"
        (cd "$here/../.." && cp -R pyproject.toml setup.py MANIFEST.in README.md LICENSE collbench cuda_kernels "$source" &&
            mkdir "$source/tools" && cp tools/man_page "$source/tools")
        # the copy has no git, which version and commit come from: setuptools-scm and setup.py read these files instead
        git -C "$here/../.." rev-parse HEAD >"$source/.commit" 2>/dev/null || rm "$source/.commit"
        if tag=$(git -C "$here/../.." describe --tags --long --match 'v[0-9]*' 2>/dev/null); then
            echo "describe-name: $tag" >"$source/.git_archival.txt"
        fi
    fi
}

kept_names() { [ -s "$work/before" ] && cut -f1 "$work/before" | paste -sd ' ' - || echo 'no torch or mpi4py found'; }

install_it() {
    "$prefix/venv/bin/python" "$here/kept.py" >"$work/before"
    "$prefix/venv/bin/python" "$here/kept.py" "$tested" >"$work/constraints.txt"
    # for the environment in which pip builds collbench; newer versions of pip use the second name
    export PIP_CONSTRAINT="$work/constraints.txt" PIP_BUILD_CONSTRAINT="$work/constraints.txt"
    # shellcheck disable=SC2086  # $where is several words
    "$prefix/venv/bin/python" -P -m pip install -q --disable-pip-version-check $where -c "$work/constraints.txt" "${source}[$extras,completion,store]" ||
        stop "pip could not install collbench with the site's packages ($(kept_names)), see its error above; $prefix has been removed"
    "$prefix/venv/bin/python" "$here/kept.py" >"$work/after"
    # every package from before must be unchanged, at the same path; mpi4py may be new
    grep -Fxv -f "$work/after" "$work/before" >"$work/lost" || :
    [ ! -s "$work/lost" ] || stop "pip replaced $(tr '\t\n' ' ' <"$work/lost"), so the install was removed: report this bug"
}

write_files() {
    mkdir -p "$prefix/bin" "$prefix/modulefiles/collbench" "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions" \
        "$prefix/share/fish/vendor_completions.d" "$prefix/share/man/man1"
    cp "$here/collbench" "$prefix/bin/collbench"
    chmod 755 "$prefix/bin/collbench"
    version=$("$prefix/bin/collbench" --version | cut -d ' ' -f 2)
    "$prefix/bin/collbench" completion bash >"$prefix/share/bash-completion/completions/collbench"
    "$prefix/bin/collbench" completion zsh >"$prefix/share/zsh/site-functions/_collbench"
    "$prefix/bin/collbench" completion fish >"$prefix/share/fish/vendor_completions.d/collbench.fish"
    [ ! -e "$prefix/venv/share/man/man1/collbench.1" ] || cp "$prefix/venv/share/man/man1/collbench.1" "$prefix/share/man/man1/"
    for kind in lua tcl; do
        lines=''
        for module in $modules; do
            case $kind in
            lua) lines="${lines}depends_on(\"$module\")  -- the module that collbench was installed with\\n" ;;
            tcl) lines="${lines}if { ![is-loaded $module] } { module load $module } ;# the module that collbench was installed with\\n" ;;
            esac
        done
        file=$prefix/modulefiles/collbench/$version
        [ $kind = tcl ] || file=$file.lua
        sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" -e "s|^@MODULES@\$|$lines|" "$here/modulefiles/collbench.$kind" >"$file"
    done
}

summary() {
    message "installed $prefix/bin/collbench $version; packages of the site, unchanged: $(kept_names)"
    set -- "$prefix"/venv/lib*/python*/site-packages/collbench/native/_loop.so
    [ -e "$1" ] ||
        message "no working C compiler found, so the timing loop runs in Python (flag python_loop): load gcc, remove $prefix, install again"
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
summary
made=''
