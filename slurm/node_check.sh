#!/bin/bash
# A short check of one node against its baseline: as Slurm's Prolog, as its HealthCheckProgram, by NHC (collbench.nhc), or by hand.
usage="\
node_check.sh [--learn | --no-drain]

  --learn      measure, and add that to the baseline: six times on a node that is known to be good, at different hours
  --no-drain   say on stdout why the node would be drained, and leave that to the caller

A check that is slower than the baseline explains waits; when three in a row are, that is confirmed, and the node is drained with
Reason=\"[collbench] CB6201 …\". Wrong data drain it at once (CB6202). Exit code 1: so it is, now; Slurm sends the job of a prolog
elsewhere. Exit code 0: everything else, our own failures and 'no verdict' among it, which are told on stderr: a tool that fails must not
drain a node.
Settings: node_check.conf beside this file."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=58 # a HealthCheckProgram is killed after 60 s
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0
strikes=3
BASELINE=/var/lib/collbench/baseline SUITE=$here/node.toml LIMIT=50 JUDGING=()

alone_on_it() { # a prolog's job has not begun; any other that is there would be disturbed, and would disturb
    local found
    [[ -z $job ]] || return 0
    found=$(state) || give_up "Slurm does not say whether a job is on this node"
    [[ ! $found =~ ALLOC|MIX|COMP ]] || give_up "a job is on this node ($found); set HealthCheckNodeState=IDLE"
}

measure() { # into $run
    while run=$KEEP/$(date -u +%Y%m%dT%H%M%SZ) && [[ -e $run || -e $run.log ]]; do
        sleep 0.2 # a quick check's name is taken until its second is over
    done
    within "$LIMIT" "$COLLBENCH" run "$SUITE" --allocation "$node-${run##*/}" --out "$run" --quiet \
        </dev/null >"$run.log" 2>&1
}

judge() { # RUN…: 0 nothing is confirmed, 1 it is; then $verdict says what, and where something is suspected there is a suite
    local folder=$BASELINE outputs=(--out "$verdict" --confirm-suite "$suspects" --exit-style prolog)
    [[ ! -d $BASELINE/$node ]] || folder=$BASELINE/$node
    rm -f "$verdict" "$suspects"
    within "$COLLBENCH" gate --baseline "$folder" "${outputs[@]}" "${JUDGING[@]}" "$@" >>"$run.log" 2>&1
}

confirmed() { # RUN…: 1 alone is a verdict; whatever else ended the judge is not, and 1 without a verdict is not
    judge "$@"
    (($? == 1)) && [[ -s $verdict ]]
}

what_is_wrong() { # its code and the verdict in one line
    local line code=CB6201
    line=$(within "$COLLBENCH" gate --verdict "$verdict" --exit-style nagios 2>/dev/null | head -n 1)
    line=${line#COLLBENCH CRITICAL - } line=${line%% | *}
    [[ $line != 'wrong data'* ]] || code=CB6202
    reason "$code" "${line:-slower than its baseline}"
}

condemn() { # RUN…: drains, and keeps what proves it
    local why kept=$KEEP/drained
    why=$(what_is_wrong)
    rm -rf "$kept" && mkdir "$kept" && mv "$verdict" "$@" "$kept" && rm -f "$waiting"
    say "what proves it is kept in $kept"
    drain "$why"
}

wait_for_more() { # this check is suspicious: it is kept with those before it until there are enough
    printf '%s\n' "$run" >>"$waiting"
    local runs=() line
    while read -r line; do # what is moved and removed later is a run of this script, whatever the file names
        [[ $line != "$KEEP"/* || ! ${line#"$KEEP"/} =~ ^[0-9]{8}T[0-9]{6}Z$ || -L $line || ! -d $line ]] || runs+=("$line")
    done <"$waiting"
    if ((${#runs[@]} < strikes)); then
        say "suspicious, ${#runs[@]} of $strikes: see $run.log"
        leave "$suspicious"
    fi
    ! confirmed "${runs[@]}" || condemn "${runs[@]}"
    say "not confirmed by $strikes checks: see $run.log"
    rm -f "$waiting"
    leave "$suspicious"
}

check() {
    local runs
    measure || { # a launch that ended early may have found wrong data; nothing else of it counts
        runs=("$run"/launch-*)
        [[ ! -d ${runs[0]} ]] || ! confirmed "${runs[@]}" || condemn "$run"
        give_up "the measurement failed, or took longer than $LIMIT s: see $run.log"
    }
    ! confirmed "$run" || condemn "$run"
    [[ -s $verdict ]] || give_up "what was measured cannot be judged: see $run.log"
    if [[ -s $suspects ]]; then
        wait_for_more
    elif within "$COLLBENCH" gate --verdict "$verdict" >>"$run.log" 2>&1; then
        rm -f "$waiting" # it is well, and what was suspicious before was chance
    else
        give_up "see $run.log"
    fi
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
tidy() { # keeps this check and those that wait
    local each
    for each in "$KEEP"/[0-9]*Z.log; do
        each=${each%.log}
        [[ $each == "$run" ]] || grep -qsxF "$each" "$waiting" || rm -rf "$each" "$each.log"
    done
}

learn() {
    trap - EXIT
    slot=3600 # nobody waits
    measure || { say "the measurement failed: see $run.log" && exit 1; }
    "$COLLBENCH" baseline add "$BASELINE" "$run"
    exit
}

learning='' run='' suspicious=0
case ${1:-} in
    '') ;;
    --learn) learning=yes ;;
    --no-drain) quiet=yes ;;
    --sweep) unsure=3 suspicious=4 ending=3 ;; # of node_sweep.sh, which tells each node's verdict by the code of its job
    *) printf '%s\n' "$usage" && exit 0 ;;
esac
read_settings
be_ready
waiting=$KEEP/waiting verdict=$KEEP/verdict.json suspects=$KEEP/suspects.toml
[[ ! -L $KEEP/.lock ]] || give_up "$KEEP/.lock is a symbolic link: remove it"
exec 9>>"$KEEP/.lock" || give_up "$KEEP cannot be written"
flock -n 9 || give_up "another check is at work on this node"
[[ -z $learning ]] || learn
[[ -d $BASELINE ]] || give_up "$BASELINE is no folder: make one with node_check.sh --learn"
need_ours BASELINE "$BASELINE"
need_ours SUITE "$SUITE"
trap 'tidy; exit "$ending"' EXIT
alone_on_it
check
leave 0
