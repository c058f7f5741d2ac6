#!/bin/bash
# The gate on Slurm: measures one allocation and judges it; measures its suspects in two more allocations; judges all together.
usage="\
gate.sh --baseline DIR --keep DIR [OPTIONS] [-- OUTPUTS OF collbench gate, such as --junit FILE --markdown FILE --format github]

  --baseline DIR         the baseline (see collbench baseline add)
  --keep DIR             folder for runs, logs and verdicts: a subfolder for each call, and 'latest', a link to the last one
  --suite SUITE          the suite of the first allocation (default: gate)
  --launches N           launches in each allocation (default: 5)
  --expect FILE          announced changes (as for collbench gate)
  --min-percent FLOOR    minimum percentage, such as ring:80@64M-; may be repeated
  --fresh-nodes          confirm on other nodes: those of the earlier allocations are excluded
  --wait SECONDS         for each job, from submission to end (default: 43200)
  --poll SECONDS         interval between queries of Slurm (default: 10)

Exit codes: 0 passed, 1 regression confirmed, 2 bad input, 3 no verdict (also if a job failed or did not end in
time), 4 wrong data, or a launch that hung or crashed, 130/143 signals. Further options of sbatch: set SBATCH_PARTITION, SBATCH_ACCOUNT
etc. COLLBENCH: path of collbench (default: collbench in PATH)."
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=${COLLBENCH:-collbench}
strikes=3
ended='^(COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED|REVOKED)$'
baseline='' keep='' suite=gate launches=5 wait=43200 poll=10 fresh_nodes=''
judging=() outputs=() allocations=() nodes=() job=''

log() { printf 'gate.sh: %s\n' "$*" >&2; }

fail() { # CODE SENTENCE
    log "$2"
    exit "$1"
}

whole() { # OPTION VALUE LEAST: exits if the value is not a whole number
    if [[ ! $2 =~ ^[0-9]{1,7}$ ]] || ((10#$2 < $3)); then
        fail 2 "$1 $2: not a valid number: use a whole number, at least $3"
    fi
}

read_options() {
    while (($#)); do
        case $1 in
            -h | --help) printf '%s\n' "$usage" && exit 0 ;;
            --fresh-nodes) fresh_nodes=yes && shift && continue ;;
            --) shift && outputs=("$@") && break ;;
        esac
        (($# > 1)) || fail 2 "$1: missing value, or unknown option: see gate.sh --help"
        case $1 in
            --baseline) baseline=$2 ;;
            --keep) keep=$2 ;;
            --suite) suite=$2 ;;
            --launches) whole "$1" "$2" 1 && launches=$2 ;;
            --wait) whole "$1" "$2" 1 && wait=$2 ;;
            --poll) whole "$1" "$2" 1 && poll=$2 ;;
            --expect | --min-percent) judging+=("$1" "$2") ;;
            *) fail 2 "unknown option $1: see gate.sh --help; write options of collbench gate after --" ;;
        esac
        shift 2
    done
}

check_options() {
    [[ -n $baseline && -n $keep ]] || fail 2 "--baseline DIR and --keep DIR are required: see gate.sh --help"
    [[ -d $baseline ]] || fail 2 "--baseline $baseline: not a folder: create it with \`collbench baseline add\`"
    [[ " ${outputs[*]-} " != *" --exit-style"* ]] ||
        fail 2 "--exit-style is not supported here: use it later with collbench gate --verdict $keep/latest/verdict.json --exit-style …"
    [[ -f $suite || $suite =~ ^(quick|full|gate)$ ]] || fail 2 "--suite $suite: not a file: use a file, quick, full or gate"
    local tool
    for tool in sbatch scontrol scancel flock "$program"; do
        command -v "$tool" >/dev/null || fail 2 "$tool not found: add it to PATH (or set COLLBENCH to the path of collbench)"
    done
}

new_folder() { # one call at a time: two would disturb each other's measurements
    if ! { mkdir -p "$keep" && exec 9>>"$keep/.lock"; }; then
        fail 2 "--keep $keep: not writable: choose another folder"
    fi
    flock -n 9 || fail 3 "no verdict: another gate.sh is running in $keep: wait until it ends"
    keep=$(cd "$keep" && pwd) baseline=$(cd "$baseline" && pwd)
    [[ ! -f $suite ]] || suite=$(realpath "$suite")
    while folder=$keep/$(date -u +%Y%m%dT%H%M%SZ) && [[ -e $folder ]]; do
        sleep 0.2
    done
    mkdir "$folder" || fail 2 "cannot create $folder: choose another --keep"
}

of_job() { # NAME: prints a field of the job from Slurm's reply
    local reply=" $reply"
    [[ $reply =~ \ $1=([^ ]*) ]] && printf '%s' "${BASH_REMATCH[1]}"
}

submit() { # NUMBER SUITE
    local script=$here/gate.sbatch excluded=()
    (($1 == 1)) || script=$here/confirm.sbatch
    if [[ -n $fresh_nodes && ${#nodes[@]} -gt 0 ]]; then
        excluded=(--exclude="$(IFS=, && printf '%s' "${nodes[*]}")")
    fi
    job=$(sbatch --parsable --output="$folder/job-$1.out" "${excluded[@]}" "$script" "$folder/allocation-$1" "$2" "$launches" 9>&-) ||
        fail 3 "no verdict: sbatch failed for allocation $1 (see above); the results so far are in $folder"
    job=${job%%;*}
    log "allocation $1 is job $job: $2, $launches launches, into $folder/allocation-$1"
}

follow() { # waits until the job has ended; sets state and reply
    local end=$((SECONDS + wait))
    while ((SECONDS < end)); do
        if reply=$(scontrol --oneliner show job "$job" 2>&1); then
            state=$(of_job JobState)
            [[ ! $state =~ $ended ]] || return 0
        elif [[ $reply == *"Invalid job id"* ]]; then # no longer in Slurm's memory: its files show how it ended
            state=FORGOTTEN reply='' && return 0
        fi # else the controller is temporarily unavailable
        sleep "$poll"
    done
    fail 3 "no verdict: job $job did not end within $wait s (${state:-no reply from Slurm}, reason $(of_job Reason)): use a longer --wait"
}

measure() { # NUMBER SUITE: exits if the job failed
    state='' reply=''
    submit "$@"
    follow
    local number=$job code
    job=''
    allocations+=("$folder/allocation-$1") nodes+=("$(of_job NodeList)")
    case $state in COMPLETED | FORGOTTEN) return ;; esac
    code=$(of_job ExitCode) # may be 143: srun returns the highest code, and ends the other ranks when one fails
    case ${code%%:*} in 2 | 4) code=${code%%:*} ;; *) code=3 ;; esac
    judge "$1" 2>/dev/null
    if [[ $judged == 4 && -s $folder/verdict.json ]]; then # wrong data: the verdict has the details
        code=4
        report
    else # launches before the failure may look healthy
        rm -f "$folder/verdict.json"
    fi
    fail "$code" "no verdict: job $number ended as $state (exit code $(of_job ExitCode)), see $folder/job-$1.out"
}

judge() { # NUMBER: writes verdict.json and, if there are suspects, a suite that measures them again; returns 1 without a verdict
    local confirm=()
    judged=0
    (($1 == strikes)) || confirm=(--confirm-suite "$folder/suspects-$(($1 + 1)).toml")
    rm -f "$folder/verdict.json"
    "$program" gate --baseline "$baseline" --out "$folder/verdict.json" "${confirm[@]}" "${judging[@]}" "${allocations[@]}" \
        >"$folder/judged-$1.txt" || judged=$?
    [[ -s $folder/verdict.json ]]
}

report() { # the verdict in all requested formats; returns collbench's exit code
    "$program" gate --baseline "$baseline" --out "$folder/verdict.json" "${judging[@]}" "${outputs[@]}" "${allocations[@]}"
}

# shellcheck disable=SC2317,SC2329 # the trap calls it
leave() { # cancels the job, and sets the link to this call's folder
    ln -sfn "${folder##*/}" "$keep/latest"
    [[ -z $job ]] || { scancel "$job" && log "job $job cancelled; the results so far are in $folder"; }
}

main() {
    local number again=$suite code=0
    for ((number = 1; number <= strikes; number++)); do
        measure "$number" "$again"
        judge "$number" || fail "$((judged ? judged : 4))" "cannot judge the results (see above); they are in $folder"
        again=$folder/suspects-$((number + 1)).toml
        [[ -s $again ]] || break
    done
    report || code=$?
    log "results: $folder"
    exit "$code"
}

read_options "$@"
check_options
new_folder
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
main
