#!/bin/bash
# A short check of one node against its baseline: as Slurm's Prolog, as its HealthCheckProgram, by NHC (collbench.nhc), or by hand.
usage="\
node_check.sh [--learn | --no-drain]

  --learn      measure, and add that to the baseline: six times on a node that is known to be good, at different hours
  --no-drain   say on stdout why the node would be drained, and leave that to the caller

A check that is slower than the baseline explains waits; when three in a row are, that is confirmed, and the node is drained with
Reason=\"[collbench] …\". Wrong data drain it at once. Exit code 1: so it is, now; Slurm sends the job of a prolog elsewhere. Exit code 0:
everything else, our own failures and 'no verdict' among it, which are told on stderr: a tool that fails must not drain a node.
Settings: node_check.conf beside this file."
set -uo pipefail

# A prolog inherits next to nothing: in a shell that learns, it has to be the same, or settings differ from those of the baseline.
if [[ ${NODE_CHECK:-} != clean ]]; then
    path=${PATH:-}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin own=()
    for name in SLURMD_NODENAME SLURM_JOB_ID SLURM_CONF; do
        [[ -z ${!name:-} ]] || own+=("$name=${!name}")
    done
    exec /usr/bin/env -i NODE_CHECK=clean PATH="$path" HOME="${HOME:-/root}" LANG=C.UTF-8 "${own[@]}" "${BASH_SOURCE[0]}" "$@"
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node=${SLURMD_NODENAME:-$(uname -n)} node=${node%%.*}
job=${SLURM_JOB_ID:-}
unset SLURM_JOB_ID SLURMD_NODENAME NODE_CHECK # what is measured is a start of its own, whatever job this is for
strikes=3

COLLBENCH=collbench BASELINE=/var/lib/collbench/baseline KEEP=/var/lib/collbench/node_check SUITE=$here/node.toml LIMIT=50 JUDGING=()
# shellcheck source=/dev/null
[[ ! -r $here/node_check.conf ]] || source "$here/node_check.conf"

say() { printf 'node_check.sh: %s: %s\n' "$node" "$*" >&2; }

give_up() { # SENTENCE: what is no fault of the node lets it be
    say "no verdict: $1"
    exit 0
}

states() { # the node's, in Slurm's words: IDLE+DRAIN
    local told
    told=$(timeout 10 scontrol --oneliner show node "$node" 2>/dev/null)
    [[ $told =~ \ State=([^ ]+) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

alone_on_it() { # a prolog's job has not begun; any other that is there would be disturbed, and would disturb
    local found
    [[ -z $job ]] || return 0
    found=$(states) || give_up "Slurm does not say whether a job is on this node"
    [[ ! $found =~ ALLOC|MIX|COMP ]] || give_up "a job is on this node ($found); set HealthCheckNodeState=IDLE"
}

measure() { # into $run
    while run=$KEEP/$(date -u +%Y%m%dT%H%M%SZ) && [[ -e $run || -e $run.log ]]; do
        sleep 0.2 # a quick check's name is taken until its second is over
    done
    timeout --kill-after=5 "$LIMIT" "$COLLBENCH" run "$SUITE" --allocation "$node-${run##*/}" --out "$run" --quiet \
        </dev/null >"$run.log" 2>&1
}

judge() { # RUN…: 0 nothing is confirmed, 1 it is; then $verdict says what, and where something is suspected there is a suite
    local folder=$BASELINE outputs=(--out "$verdict" --confirm-suite "$suspects" --exit-style prolog)
    [[ ! -d $BASELINE/$node ]] || folder=$BASELINE/$node
    rm -f "$verdict" "$suspects"
    timeout 60 "$COLLBENCH" gate --baseline "$folder" "${outputs[@]}" "${JUDGING[@]}" "$@" >>"$run.log" 2>&1
}

confirmed() { # RUN…: 1 alone is a verdict; whatever else ended the judge is not, and 1 without a verdict is not
    judge "$@"
    (($? == 1)) && [[ -s $verdict ]]
}

reason() { # in one line, without what a shell or Slurm could mistake
    local line
    line=$(timeout 60 "$COLLBENCH" gate --verdict "$verdict" --exit-style nagios 2>/dev/null | head -n 1)
    line=${line#COLLBENCH CRITICAL - } line=${line%% | *}
    line=$(tr -cd '[:print:]' <<<"${line:-slower than its baseline}")
    ((${#line} <= 200)) || line="${line:0:200}" line="${line% *} ..."
    printf '[collbench] %s' "$line"
}

drain() { # keeps what proves it, and a reason that somebody gave before
    local why kept=$KEEP/drained
    why=$(reason)
    rm -rf "$kept" && mkdir "$kept" && mv "$verdict" "$@" "$kept" && rm -f "$waiting"
    say "$why (kept in $kept)"
    if [[ -n $quiet ]]; then
        printf '%s\n' "$why"
    elif [[ $(states) =~ DRAIN|DOWN ]]; then
        say "it is drained or down already, and keeps its reason"
    else
        timeout 20 scontrol update NodeName="$node" State=DRAIN Reason="$why" || say "scontrol could not drain it"
    fi
    exit 1
}

wait_for_more() { # this check is suspicious, and nothing more yet: it stands beside those before it
    printf '%s\n' "$run" >>"$waiting"
    local runs=()
    mapfile -t runs <"$waiting"
    if ((${#runs[@]} < strikes)); then
        say "suspicious, ${#runs[@]} of $strikes: see $run.log"
        return
    fi
    ! confirmed "${runs[@]}" || drain "${runs[@]}"
    say "not confirmed by $strikes checks: see $run.log"
    rm -f "$waiting"
}

check() {
    local runs
    measure || { # a launch that ended early may have found wrong data; nothing else of it counts
        runs=("$run"/launch-*)
        [[ ! -d ${runs[0]} ]] || ! confirmed "${runs[@]}" || drain "$run"
        give_up "the measurement failed, or took longer than $LIMIT s: see $run.log"
    }
    ! confirmed "$run" || drain "$run"
    [[ -s $verdict ]] || give_up "what was measured cannot be judged: see $run.log"
    if [[ -s $suspects ]]; then
        wait_for_more
    elif timeout 60 "$COLLBENCH" gate --verdict "$verdict" >>"$run.log" 2>&1; then
        rm -f "$waiting" # it is well, and what was suspicious before was chance
    else
        give_up "see $run.log"
    fi
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
sweep() { # keeps this check and those that wait
    local each
    for each in "$KEEP"/[0-9]*Z.log; do
        each=${each%.log}
        [[ $each == "$run" ]] || grep -qsxF "$each" "$waiting" || rm -rf "$each" "$each.log"
    done
}

learn() {
    measure || { say "the measurement failed: see $run.log" && exit 1; }
    "$COLLBENCH" baseline add "$BASELINE" "$run"
    exit
}

quiet='' learning='' run=''
case ${1:-} in
    '') ;;
    --learn) learning=yes ;;
    --no-drain) quiet=yes ;;
    *) printf '%s\n' "$usage" && exit 0 ;;
esac
waiting=$KEEP/waiting verdict=$KEEP/verdict.json suspects=$KEEP/suspects.toml
if ! { mkdir -p "$KEEP" && exec 9>"$KEEP/.lock"; }; then
    give_up "$KEEP cannot be written"
fi
flock -n 9 || give_up "another check is at work on this node"
command -v "$COLLBENCH" >/dev/null || give_up "$COLLBENCH is not found: set COLLBENCH in $here/node_check.conf"
[[ -z $learning ]] || learn
[[ -d $BASELINE ]] || give_up "$BASELINE is no folder: make one with node_check.sh --learn"
trap sweep EXIT
alone_on_it
check
exit 0
