#!/bin/bash
# A short check of one node against its baseline: as Slurm's Prolog, as its HealthCheckProgram, by NHC (collbench.nhc), or by hand.
usage="\
node_check.sh [--learn | --no-drain]

  --learn      measure and add the result to the baseline: do this six times on a healthy node, at different hours
  --no-drain   print the reason on stdout instead of draining the node

A check that is slower than the baseline makes the node suspicious. If three checks in a row confirm it, the node is drained with
Reason=\"[collbench] CB6201 …\". Wrong data drains it at once (CB6202). Exit code 1: the node is drained; after a prolog, Slurm starts
the job elsewhere. Exit code 0: anything else, including 'no verdict' and failures of this script, which are reported on stderr: a
failing tool must not drain a node.
Settings: node_check.conf in the folder of this script."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=58 # a HealthCheckProgram is killed after 60 s
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0
strikes=3
BASELINE=/var/lib/collbench/baseline SUITE=$here/node.toml LIMIT=50 JUDGING=()

alone_on_it() { # exits if a job runs on the node; the job of a prolog has not begun
    local found
    [[ -z $job ]] || return 0
    found=$(state) || give_up "cannot get the node's state from Slurm"
    [[ ! $found =~ ALLOC|MIX|COMP ]] || give_up "a job runs on this node ($found): set HealthCheckNodeState=IDLE"
}

measure() { # into $run
    while run=$KEEP/$(date -u +%Y%m%dT%H%M%SZ) && [[ -e $run || -e $run.log ]]; do
        sleep 0.2 # a run folder is named by the second
    done
    within "$LIMIT" "$COLLBENCH" run "$SUITE" --allocation "$node-${run##*/}" --out "$run" --quiet \
        </dev/null >"$run.log" 2>&1
}

judge() { # RUN…: returns 1 if a fault is confirmed. Writes $verdict and, if there are suspects, the suite $suspects
    local folder=$BASELINE outputs=(--out "$verdict" --confirm-suite "$suspects" --exit-style prolog)
    [[ ! -d $BASELINE/$node ]] || folder=$BASELINE/$node
    rm -f "$verdict" "$suspects"
    within "$COLLBENCH" gate --baseline "$folder" "${outputs[@]}" "${JUDGING[@]}" "$@" >>"$run.log" 2>&1
}

confirmed() { # RUN…: true only for exit code 1 with a verdict
    judge "$@"
    (($? == 1)) && [[ -s $verdict ]]
}

what_is_wrong() { # prints the code and the verdict in one line
    local line code=CB6201
    line=$(within "$COLLBENCH" gate --verdict "$verdict" --exit-style nagios 2>/dev/null | head -n 1)
    line=${line#COLLBENCH CRITICAL - } line=${line%% | *}
    ! grep -q '"result": *"wrong data"' "$verdict" || code=CB6202
    reason "$code" "${line:-slower than its baseline}"
}

condemn() { # RUN…: drains the node and keeps the evidence
    local why kept=$KEEP/drained
    why=$(what_is_wrong)
    rm -rf "$kept" && mkdir "$kept" && mv "$verdict" "$@" "$kept" && rm -f "$waiting"
    log "evidence: $kept"
    drain "$why"
}

wait_for_more() { # keeps this suspicious check with those before it, until there are enough
    printf '%s\n' "$run" >>"$waiting"
    local runs=() line
    while read -r line; do # only runs of this script: they are moved or removed later
        [[ $line != "$KEEP"/* || ! ${line#"$KEEP"/} =~ ^[0-9]{8}T[0-9]{6}Z$ || -L $line || ! -d $line ]] || runs+=("$line")
    done <"$waiting"
    if ((${#runs[@]} < strikes)); then
        log "suspicious check ${#runs[@]} of $strikes: see $run.log"
        leave "$suspicious"
    fi
    ! confirmed "${runs[@]}" || condemn "${runs[@]}"
    log "not confirmed by $strikes checks: see $run.log"
    rm -f "$waiting"
    leave "$suspicious"
}

check() {
    local runs
    measure || { # a launch that ended early may have found wrong data; ignore its times
        runs=("$run"/launch-*)
        [[ ! -d ${runs[0]} ]] || ! confirmed "${runs[@]}" || condemn "$run"
        give_up "the measurement failed, or took longer than $LIMIT s: see $run.log"
    }
    ! confirmed "$run" || condemn "$run"
    [[ -s $verdict ]] || give_up "cannot judge the measurement: see $run.log"
    if [[ -s $suspects ]]; then
        wait_for_more
    elif within "$COLLBENCH" gate --verdict "$verdict" >>"$run.log" 2>&1; then
        rm -f "$waiting" # healthy: discard earlier suspicious checks
    else
        give_up "see $run.log"
    fi
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
tidy() { # removes all checks but this one and the suspicious ones
    local each
    for each in "$KEEP"/[0-9]*Z.log; do
        each=${each%.log}
        [[ $each == "$run" ]] || grep -qsxF "$each" "$waiting" || rm -rf "$each" "$each.log"
    done
}

learn() {
    trap - EXIT
    slot=3600 # Slurm does not wait for it
    measure || { log "the measurement failed: see $run.log" && exit 1; }
    "$COLLBENCH" baseline add "$BASELINE" "$run"
    exit
}

learning='' run='' suspicious=0
case ${1:-} in
    '') ;;
    --learn) learning=yes ;;
    --no-drain) quiet=yes ;;
    --sweep) unsure=3 suspicious=4 ending=3 ;; # for node_sweep.sh: a different exit code for each outcome
    *) printf '%s\n' "$usage" && exit 0 ;;
esac
read_settings
be_ready
waiting=$KEEP/waiting verdict=$KEEP/verdict.json suspects=$KEEP/suspects.toml
[[ ! -L $KEEP/.lock ]] || give_up "$KEEP/.lock is a symbolic link: remove it"
exec 9>>"$KEEP/.lock" || give_up "$KEEP: not writable"
flock -n 9 || give_up "another check is running on this node"
[[ -z $learning ]] || learn
[[ -d $BASELINE ]] || give_up "$BASELINE: not a folder: create it with node_check.sh --learn"
need_ours BASELINE "$BASELINE"
need_ours SUITE "$SUITE"
trap 'tidy; exit "$ending"' EXIT
alone_on_it
check
leave 0
