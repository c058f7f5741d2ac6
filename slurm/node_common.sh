# shellcheck shell=bash disable=SC2034,SC2154
# Shared by node_check.sh, node_probe.sh and node_epilog.sh: a clean start, the settings, the checks of folders, and the drain itself.
# A script that sources this sets PATH, `here` (its folder) and `slot` (the seconds that Slurm allows) first.

# A hook of Slurm inherits almost no environment. With --learn the environment is the same, so that the baseline fits.
if [[ ${NODE_HOOK:-} != clean ]]; then
    own=()
    for name in SLURMD_NODENAME SLURM_JOB_ID SLURM_CONF SLURM_JOB_EXIT_CODE2 SLURM_JOB_DERIVED_EC; do
        [[ -z ${!name:-} ]] || own+=("$name=${!name}")
    done
    exec /usr/bin/env -i NODE_HOOK=clean PATH="$PATH" HOME="${HOME:-/root}" LANG=C.UTF-8 "${own[@]}" "$here/${BASH_SOURCE[-1]##*/}" "$@"
fi
cd / || exit 0 # load no program and no module from the current folder
umask 022
node=${SLURMD_NODENAME:-$(uname -n)} node=${node%%.*}
job=${SLURM_JOB_ID:-}
unset SLURM_JOB_ID SLURMD_NODENAME NODE_HOOK # the measurement is a separate launch, not a step of the job

COLLBENCH=collbench KEEP=/var/lib/collbench/node_check
quiet=''                      # not empty: print the reason on stdout instead of draining
unsure=0                      # exit code without a verdict
ending=0                      # Slurm drains a node if its hook fails; a failure of this script must not do that
trap 'exit "$ending"' EXIT

log() { printf '%s: %s: %s\n' "${0##*/}" "$node" "$*" >&2; }

leave() { # CODE
    ending=$1
    exit "$1"
}

give_up() { # SENTENCE: exits without a verdict
    log "no verdict: $1"
    leave "$unsure"
}

others_can_change() { # PATH: prints the first part of the path that another user can change; fails if there is none
    local real parts=() owner mode at=0
    real=$(realpath -e -- "$1" 2>/dev/null) || return 1
    while parts+=("$real") && [[ $real != / ]]; do
        real=${real%/*} real=${real:-/}
    done
    while read -r owner mode; do # in a sticky parent folder others can add files, but not replace this one
        if ((owner != 0 && owner != EUID || (8#$mode & 8#022) && !(at && (8#$mode & 8#1000)))); then
            printf '%s (owner: user %s, mode %s)' "${parts[at]}" "$owner" "$mode"
            return 0
        fi
        at=$((at + 1))
    done < <(stat --format='%u %a' -- "${parts[@]}") # numbers only: bash arithmetic would execute parts of a name
    return 1
}

need_ours() { # NAME PATH: exits without a verdict if a user other than root and this one can change PATH
    local found
    ! found=$(others_can_change "$2") ||
        give_up "$1=$2: other users can change $found: chown it to root and chmod go-w it"
}

read_settings() {
    local file=$here/node_check.conf
    [[ -r $file ]] || give_up "$file: cannot be read"
    need_ours settings "$file"
    # shellcheck source=/dev/null
    source "$file" || give_up "$file: bash reports an error"
}

be_ready() { # finds the program and checks KEEP, with a time limit in case a file system hangs
    local found owner
    # shellcheck disable=SC2016
    found=$(within bash -c 'command -v "$0"' "$COLLBENCH") || give_up "$COLLBENCH not found: set COLLBENCH in $here/node_check.conf"
    [[ $found == /* ]] || give_up "COLLBENCH=$COLLBENCH: not an absolute path: correct it in $here/node_check.conf"
    mkdir -p "$KEEP" && [[ -w $KEEP ]] || give_up "$KEEP: not writable"
    need_ours KEEP "$KEEP"
    owner=$(stat --dereference --format=%u -- "$KEEP")
    [[ $owner == "$EUID" ]] || give_up "KEEP=$KEEP is owned by user $owner: chown it to user $EUID"
    KEEP=$(realpath -e -- "$KEEP") || give_up "$KEEP: cannot be read"
}

within() { # [MOST] COMMAND…: runs it for at most the rest of the slot, and at most MOST seconds
    local left=$((slot - SECONDS))
    if [[ $1 =~ ^[0-9]+$ ]]; then
        ((left <= $1)) || left=$1
        shift
    fi
    ((left >= 1)) || return 124
    timeout --kill-after=1 "$left" "$@"
}

state() { # prints the node's state as Slurm has it: IDLE+DRAIN
    local reply
    reply=$(within 10 scontrol --oneliner show node "$node" 2>/dev/null)
    [[ $reply =~ \ State=([^ ]+) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

reason() { # CODE SENTENCE: prints one line without characters that are special to a shell or Slurm
    local line
    line=$(head -n 1 <<<"$2" | tr -cd '[:print:]' | tr -d '"')
    ((${#line} <= 200)) || line="${line:0:200}" line="${line% *} ..."
    printf '[collbench] %s %s' "$1" "$line"
}

drain() { # REASON: drains the node and exits with 1; an earlier reason stays
    local found
    if [[ -n $quiet ]]; then
        printf '%s\n' "$1"
        leave 1
    fi
    found=$(state) || give_up "cannot get the node's state from Slurm, so it is not drained; reason: $1"
    if [[ $found =~ DRAIN|DOWN ]]; then
        log "already drained or down; the earlier reason stays. New reason: $1"
    else
        within scontrol update NodeName="$node" State=DRAIN Reason="$1" || give_up "scontrol could not drain the node; reason: $1"
        log "$1"
    fi
    leave 1
}

findings() { # prints "CODE sentence" for each finding that drains. Returns 1: severe findings, 0: none, else: no verdict
    local reply code severity since=()
    [[ -z $good ]] || since=(--since "$good")
    reply=$(within "$COLLBENCH" doctor "${since[@]}" --color never </dev/null 2>"$KEEP/probe.err")
    code=$?
    printf '%s\n' "$reply" >"$KEEP/probe.txt"
    ((code == 1)) || return "$code"
    grep -qE '^severe +CB[0-9]{4} ' <<<"$reply" || return 3 # a crash of Python has exit code 1 as well
    while read -r severity code reply; do
        [[ $severity != severe || " ${DRAIN_FOR:-} " != *" $code "* ]] || printf '%s %s\n' "$code" "$reply"
    done <<<"$reply"
    return 1
}

probe() { # runs collbench doctor and drains for the first finding, the worst one
    local found code good=${GOOD:-}
    good=${good//%n/$node}
    if [[ -n $good && ! -r $good ]]; then
        log "$good: cannot be read, so the node is not compared with it"
        good=''
    fi
    [[ -z $good ]] || need_ours GOOD "$good"
    found=$(findings)
    code=$?
    ((code <= 1)) || give_up "the probe failed or took longer than $slot s (exit code $code): see $KEEP/probe.err"
    [[ -z $found ]] || drain "$(reason "${found%% *}" "${found#* }")"
}
