#!/bin/bash
# The whole gate on Slurm: measures a first allocation, judges it, measures its suspects in two fresh allocations, judges all.
usage="\
gate.sh --baseline DIR --keep DIR [OPTIONS] [-- OUTPUTS OF collbench gate, such as --junit FILE --markdown FILE --format github]

  --baseline DIR         the good allocations (collbench baseline add)
  --keep DIR             where every run, log and verdict stays: a folder for each call, and 'latest', a link to the last one
  --suite SUITE          what is measured first (default: gate)
  --launches N           launches in each allocation (default: 5)
  --expect FILE          changes that were announced
  --min-percent FLOOR    a share of the ceiling, such as ring:80@64M-; may be given several times
  --fresh-nodes          confirm on other nodes: those of the earlier allocations are excluded
  --wait SECONDS         for each job, from submission to end (default: 43200)
  --poll SECONDS         how often Slurm is asked (default: 10)

Exit codes: 0 passed, 1 regression confirmed, 2 bad input, 3 no verdict (a job that failed, or did not come in time, too), 4 wrong data, a
launch that hung or crashed, 130/143 signals. What sbatch needs beside the #SBATCH lines stands in its own variables (SBATCH_PARTITION,
SBATCH_ACCOUNT …); COLLBENCH names the program (default: collbench)."
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${COLLBENCH:-collbench}
strikes=3
ended='^(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED|REVOKED)$'
baseline='' keep='' suite=gate launches=5 wait=43200 poll=10 fresh_nodes=''
judging=() outputs=() allocations=() nodes=() job=''

say() { printf 'gate.sh: %s\n' "$*" >&2; }

fail() { # CODE SENTENCE
    say "$2"
    exit "$1"
}

whole() { # OPTION VALUE LEAST: a number, or the end
    if [[ ! $2 =~ ^[0-9]{1,7}$ ]] || ((10#$2 < $3)); then
        fail 2 "$1 $2: a whole number from $3 on is wanted"
    fi
}

read_options() {
    while (($#)); do
        case $1 in
            -h | --help) printf '%s\n' "$usage" && exit 0 ;;
            --fresh-nodes) fresh_nodes=yes && shift && continue ;;
            --) shift && outputs=("$@") && break ;;
        esac
        (($# > 1)) || fail 2 "$1: its value is missing, or there is no such option; see gate.sh --help"
        case $1 in
            --baseline) baseline=$2 ;;
            --keep) keep=$2 ;;
            --suite) suite=$2 ;;
            --launches) whole "$1" "$2" 1 && launches=$2 ;;
            --wait) whole "$1" "$2" 1 && wait=$2 ;;
            --poll) whole "$1" "$2" 1 && poll=$2 ;;
            --expect | --min-percent) judging+=("$1" "$2") ;;
            *) fail 2 "there is no option $1: see gate.sh --help; what is for collbench gate comes after --" ;;
        esac
        shift 2
    done
}

check_options() {
    [[ -n $baseline && -n $keep ]] || fail 2 "--baseline DIR and --keep DIR are needed: see gate.sh --help"
    [[ -d $baseline ]] || fail 2 "--baseline $baseline is no folder: make one with \`collbench baseline add\`"
    [[ " ${outputs[*]-} " != *" --exit-style"* ]] ||
        fail 2 "--exit-style is for what reads a verdict later: collbench gate --verdict $keep/latest/verdict.json --exit-style …"
    [[ -f $suite || $suite =~ ^(quick|full|gate)$ ]] || fail 2 "--suite $suite is no file: name one, or quick, full or gate"
    local tool
    for tool in sbatch scontrol scancel flock "$program"; do
        command -v "$tool" >/dev/null || fail 2 "$tool is not found: put it on the PATH (COLLBENCH names the program)"
    done
}

new_folder() { # one call at a time: a second one would disturb what the first one measures
    if ! { mkdir -p "$keep" && exec 9>>"$keep/.lock"; }; then
        fail 2 "--keep $keep cannot be written: choose another folder"
    fi
    flock -n 9 || fail 3 "no verdict: another gate.sh is at work in $keep; wait for its end"
    keep=$(cd "$keep" && pwd) baseline=$(cd "$baseline" && pwd)
    [[ ! -f $suite ]] || suite=$(realpath "$suite")
    while folder=$keep/$(date -u +%Y%m%dT%H%M%SZ) && [[ -e $folder ]]; do
        sleep 0.2
    done
    mkdir "$folder" || fail 2 "$folder cannot be made: choose another --keep"
}

of_job() { # NAME: a word of what Slurm says of the job
    local told=" $told"
    [[ $told =~ \ $1=([^ ]*) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

submit() { # NUMBER SUITE
    local script=$here/gate.sbatch excluded=()
    (($1 == 1)) || script=$here/confirm.sbatch
    if [[ -n $fresh_nodes && ${#nodes[@]} -gt 0 ]]; then
        excluded=(--exclude="$(IFS=, && printf '%s' "${nodes[*]}")")
    fi
    job=$(sbatch --parsable --output="$folder/job-$1.out" "${excluded[@]}" "$script" "$folder/allocation-$1" "$2" "$launches" 9>&-) ||
        fail 3 "no verdict: Slurm did not take the job of allocation $1 (see above); what was measured is in $folder"
    job=${job%%;*}
    say "allocation $1 is job $job: $2, $launches launches, into $folder/allocation-$1"
}

follow() { # waits for the job's end; sets state and told
    local end=$((SECONDS + wait))
    while ((SECONDS < end)); do
        if told=$(scontrol --oneliner show job "$job" 2>&1); then
            state=$(of_job JobState)
            [[ ! $state =~ $ended ]] || return 0
        elif [[ $told == *"Invalid job id"* ]]; then # long since forgotten: its files say how it ended
            state=FORGOTTEN told='' && return 0
        fi # else the controller is away for a while
        sleep "$poll"
    done
    fail 3 "no verdict: job $job did not end within $wait s (${state:-Slurm did not answer}, reason $(of_job Reason)); raise --wait"
}

measure() { # NUMBER SUITE: ends here where the job failed
    state='' told=''
    submit "$@"
    follow
    local number=$job code
    job=''
    allocations+=("$folder/allocation-$1") nodes+=("$(of_job NodeList)")
    case $state in COMPLETED | FORGOTTEN) return ;; esac
    code=$(of_job ExitCode) # may be 143: srun tells the highest, and ends the other ranks where one failed
    case ${code%%:*} in 2 | 4) code=${code%%:*} ;; *) code=3 ;; esac
    judge "$1" 2>/dev/null
    if [[ $judged == 4 && -s $folder/verdict.json ]]; then # wrong data: the verdict names them
        code=4
        tell
    else # launches that came before the failure may look well
        rm -f "$folder/verdict.json"
    fi
    fail "$code" "no verdict: job $number ended as $state (exit code $(of_job ExitCode)), see $folder/job-$1.out"
}

judge() { # NUMBER: writes verdict.json and, where something is suspected, the suite that measures it again; fails where nothing was judged
    local confirm=()
    judged=0
    (($1 == strikes)) || confirm=(--confirm-suite "$folder/suspects-$(($1 + 1)).toml")
    rm -f "$folder/verdict.json"
    "$program" gate --baseline "$baseline" --out "$folder/verdict.json" "${confirm[@]}" "${judging[@]}" "${allocations[@]}" \
        >"$folder/judged-$1.txt" || judged=$?
    [[ -s $folder/verdict.json ]]
}

tell() { # the verdict in every form that was asked for; the exit code is collbench's
    "$program" gate --baseline "$baseline" --out "$folder/verdict.json" "${judging[@]}" "${outputs[@]}" "${allocations[@]}"
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
leave() { # nothing stays in the queue, and the last call's folder is found
    ln -sfn "${folder##*/}" "$keep/latest"
    [[ -z $job ]] || { scancel "$job" && say "job $job is cancelled; what was measured is in $folder"; }
}

main() {
    local number again=$suite code=0
    for ((number = 1; number <= strikes; number++)); do
        measure "$number" "$again"
        judge "$number" || fail "$((judged ? judged : 4))" "what was measured cannot be judged (see above): it is in $folder"
        again=$folder/suspects-$((number + 1)).toml
        [[ -s $again ]] || break
    done
    tell || code=$?
    say "all of it is kept in $folder"
    exit "$code"
}

read_options "$@"
check_options
new_folder
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
main
