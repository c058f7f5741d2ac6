# shellcheck shell=bash disable=SC2034,SC2154
# Shared by node_check.sh, node_probe.sh and node_epilog.sh: a clean start, the settings, the checks of folders, and the drain itself.
# A script that sources this sets PATH, `here` (its folder) and `slot` (the seconds that Slurm allows) first.

# A hook of Slurm inherits almost nothing. A shell that learns gets the same environment, so that the settings match those of the baseline.
if [[ ${NODE_HOOK:-} != clean ]]; then
    own=()
    for name in SLURMD_NODENAME SLURM_JOB_ID SLURM_CONF SLURM_JOB_EXIT_CODE2 SLURM_JOB_DERIVED_EC; do
        [[ -z ${!name:-} ]] || own+=("$name=${!name}")
    done
    exec /usr/bin/env -i NODE_HOOK=clean PATH="$PATH" HOME="${HOME:-/root}" LANG=C.UTF-8 "${own[@]}" "$here/${BASH_SOURCE[-1]##*/}" "$@"
fi
cd / || exit 0 # no program and no module comes from the folder in which the hook was started
umask 022
node=${SLURMD_NODENAME:-$(uname -n)} node=${node%%.*}
job=${SLURM_JOB_ID:-}
unset SLURM_JOB_ID SLURMD_NODENAME NODE_HOOK # what is measured is a start of its own, whatever job this is for

COLLBENCH=collbench KEEP=/var/lib/collbench/node_check
quiet=''                      # not empty: the caller drains, and reads the reason on stdout
unsure=0                      # the exit code without a verdict
ending=0                      # Slurm drains a node whose hook ends with another code: not for a bug of ours, nor of the settings
trap 'exit "$ending"' EXIT

say() { printf '%s: %s: %s\n' "${0##*/}" "$node" "$*" >&2; }

leave() { # CODE
    ending=$1
    exit "$1"
}

give_up() { # SENTENCE: what is no fault of the node lets it be
    say "no verdict: $1"
    leave "$unsure"
}

others_can_change() { # PATH: prints the first part of the path that another user can change; fails if there is none
    local real parts=() owner mode at=0
    real=$(realpath -e -- "$1" 2>/dev/null) || return 1
    while parts+=("$real") && [[ $real != / ]]; do
        real=${real%/*} real=${real:-/}
    done
    while read -r owner mode; do # in a sticky folder above it, others can add names, but not replace ours
        if ((owner != 0 && owner != EUID || (8#$mode & 8#022) && !(at && (8#$mode & 8#1000)))); then
            printf '%s (owner: user %s, mode %s)' "${parts[at]}" "$owner" "$mode"
            return 0
        fi
        at=$((at + 1))
    done < <(stat --format='%u %a' -- "${parts[@]}") # numbers only: a name may hold what bash's arithmetic would run
    return 1
}

need_ours() { # NAME PATH: ends without a verdict if another user than root and this one can change what PATH holds
    local found
    ! found=$(others_can_change "$2") ||
        give_up "$1=$2: other users can change $found, so nothing is read from it: chown it to root and chmod go-w it"
}

read_settings() {
    local file=$here/node_check.conf
    [[ -r $file ]] || give_up "$file cannot be read"
    need_ours settings "$file"
    # shellcheck source=/dev/null
    source "$file" || give_up "$file is not read to its end by bash"
}

be_ready() { # finds the program and checks KEEP; a program on a file system that does not answer must not delay the hook
    local found owner
    # shellcheck disable=SC2016
    found=$(within bash -c 'command -v "$0"' "$COLLBENCH") || give_up "$COLLBENCH is not found: set COLLBENCH in $here/node_check.conf"
    [[ $found == /* ]] || give_up "COLLBENCH=$COLLBENCH is not found by an absolute path: set one in $here/node_check.conf"
    mkdir -p "$KEEP" && [[ -w $KEEP ]] || give_up "$KEEP cannot be written"
    need_ours KEEP "$KEEP"
    owner=$(stat --dereference --format=%u -- "$KEEP")
    [[ $owner == "$EUID" ]] || give_up "KEEP=$KEEP belongs to user $owner: chown it to user $EUID"
    KEEP=$(realpath -e -- "$KEEP") || give_up "$KEEP cannot be read"
}

within() { # [MOST] COMMAND…: for what is left of the slot, or for MOST seconds where that is less
    local left=$((slot - SECONDS))
    if [[ $1 =~ ^[0-9]+$ ]]; then
        ((left <= $1)) || left=$1
        shift
    fi
    ((left >= 1)) || return 124
    timeout --kill-after=1 "$left" "$@"
}

state() { # the node's, in Slurm's words: IDLE+DRAIN
    local told
    told=$(within 10 scontrol --oneliner show node "$node" 2>/dev/null)
    [[ $told =~ \ State=([^ ]+) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

reason() { # CODE SENTENCE: in one line, without what a shell or Slurm could mistake
    local line
    line=$(head -n 1 <<<"$2" | tr -cd '[:print:]' | tr -d '"')
    ((${#line} <= 200)) || line="${line:0:200}" line="${line% *} ..."
    printf '[collbench] %s %s' "$1" "$line"
}

drain() { # REASON: ends with 1 where the node is out of use now, or the caller sees to it; a reason that somebody gave before stays
    local found
    if [[ -n $quiet ]]; then
        printf '%s\n' "$1"
        leave 1
    fi
    found=$(state) || give_up "Slurm does not say what state the node is in, so it stays in use, with $1"
    if [[ $found =~ DRAIN|DOWN ]]; then
        say "it is drained or down already, and keeps its reason; this one is $1"
    else
        within scontrol update NodeName="$node" State=DRAIN Reason="$1" || give_up "scontrol could not drain it, with $1"
        say "$1"
    fi
    leave 1
}

findings() { # prints "CODE sentence" for each severe finding that drains; 1: there are severe ones, 0: there are none, else no verdict
    local told code severity since=()
    [[ -z $good ]] || since=(--since "$good")
    told=$(within "$COLLBENCH" doctor "${since[@]}" --color never </dev/null 2>"$KEEP/probe.err")
    code=$?
    printf '%s\n' "$told" >"$KEEP/probe.txt"
    ((code == 1)) || return "$code"
    grep -qE '^severe +CB[0-9]{4} ' <<<"$told" || return 3 # a Python that broke ends with 1, too
    while read -r severity code told; do
        [[ $severity != severe || " ${DRAIN_FOR:-} " != *" $code "* ]] || printf '%s %s\n' "$code" "$told"
    done <<<"$told"
    return 1
}

probe() { # looks, and drains for the first finding, which is the worst
    local found code good=${GOOD:-}
    good=${good//%n/$node}
    if [[ -n $good && ! -r $good ]]; then
        say "$good cannot be read, so nothing is compared with it"
        good=''
    fi
    [[ -z $good ]] || need_ours GOOD "$good"
    found=$(findings)
    code=$?
    ((code <= 1)) || give_up "the probe failed, or took longer than its $slot s (exit code $code): see $KEEP/probe.err"
    [[ -z $found ]] || drain "$(reason "${found%% *}" "${found#* }")"
}
