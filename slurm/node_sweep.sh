#!/bin/bash
# Checks all idle nodes at the same time, each in a short job: from cron on a login node, or by hand.
usage="\
node_sweep.sh [OPTIONS] [-- OPTIONS OF sbatch, such as --account=ops --qos=scavenger]

  --partition NAME   check the idle nodes of this partition (default: Slurm's default partition)
  --start SECONDS    cancel jobs that have not begun by then: another job got the node (default: 90)
  --keep DIR         a folder that the nodes share, for the output of each check (default: none)

Submits one job array (two above 1,000 nodes) with a task per node, with the lowest priority (--nice). Each task runs node_check.sh of this
folder, alone on its node, for at most two minutes. node_check.sh drains by its own rule, so the user must be allowed to drain nodes and to
write KEEP. Prints one line per node. Exit codes: 0 no node was drained, 1 some were, 2 bad input, 3 the sweep failed and no node was
checked, 130/143 signals (its jobs are cancelled)."
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
partition='' start=90 keep='' options=() nodes=() jobs=()
longest=180                # seconds: two minutes of the job, and Slurm's own to end it
lowest_priority=2147483645 # as low as --nice goes
declare -A ends=()         # by node: its task's state and exit code
unfinished='^(PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|STAGE_OUT|SIGNALING|STOPPED|RESIZING)'

log() { printf 'node_sweep.sh: %s\n' "$*" >&2; }

fail() { # CODE SENTENCE
    log "$2"
    exit "$1"
}

read_options() {
    while (($#)); do
        case $1 in
            -h | --help) printf '%s\n' "$usage" && exit 0 ;;
            --) shift && options=("$@") && break ;;
        esac
        (($# > 1)) || fail 2 "$1: missing value, or unknown option: see node_sweep.sh --help"
        case $1 in
            --partition) partition=$2 ;;
            --start) start=$2 ;;
            --keep) keep=$2 ;;
            *) fail 2 "unknown option $1: see node_sweep.sh --help; write options of sbatch after --" ;;
        esac
        shift 2
    done
    [[ $start =~ ^[1-9][0-9]{0,3}$ ]] || fail 2 "--start $start: not a valid number: use 1 to 9999"
    [[ -z $keep || (-d $keep && -w $keep) ]] || fail 2 "--keep $keep: not a writable folder"
    [[ -z $keep ]] || keep=$(cd "$keep" && pwd)
}

list_idle() { # into $nodes; not those that do not respond (idle*), are off (idle~), planned or reserved (plnd, resv)
    local reply name state where
    reply=$(timeout 30 sinfo --noheader --Node --states=idle ${partition:+--partition="$partition"} --format='%N %t %P') ||
        fail 3 "sinfo failed"
    while read -r name state where; do
        [[ $state == idle && $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || continue
        [[ -z $partition && $where != *'*' ]] || nodes+=("$name")
    done <<<"$reply"
}

job_script() { # NODE…: exits on another node than requested, or if this folder is missing there
    cat <<END
#!/bin/bash
nodes=($*)
[[ \${nodes[SLURM_ARRAY_TASK_ID]} == "\$SLURMD_NODENAME" && -r $(printf %q "$here")/node_common.sh ]] || exit 3
exec $(printf %q "$here")/node_check.sh --sweep
END
}

submit() { # NODE…: submits one held array, binds each task to its node, and releases it; three processes for a thousand nodes
    local reply job index output=/dev/null
    [[ -z $keep ]] || output=$keep/%A_%a.txt
    reply=$(job_script "$@" | timeout 30 sbatch --parsable --hold --array="0-$(($# - 1))" --job-name=collbench-node-sweep --nodes=1 \
        --exclusive --mem=0 --time=2 --nice="$lowest_priority" --no-requeue --export=NONE --output="$output" \
        ${partition:+--partition="$partition"} "${options[@]}") || fail 3 "sbatch failed for the job array"
    job=${reply%%;*}
    [[ $job =~ ^[0-9]+$ ]] || fail 3 "sbatch returned no job number"
    jobs+=("$job")
    for ((index = 0; index < $#; index++)); do
        printf 'update JobId=%s_%s ReqNodeList=%s\n' "$job" "$index" "${@:index+1:1}"
    done | timeout 120 scontrol >/dev/null || log "could not bind all tasks of job $job to their nodes"
    timeout 30 scontrol release "$job" || fail 3 "scontrol could not release job $job"
}

ask() { # reads the state of each task into $ends; 1 if Slurm does not reply
    local job reply line state
    for job in "${jobs[@]}"; do
        reply=$(timeout 30 scontrol --oneliner show job "$job" 2>/dev/null) || return 1
        while read -r line; do
            [[ $line =~ \ JobState=([A-Z_]+) ]] || continue
            state=${BASH_REMATCH[1]}
            [[ ! $line =~ \ ExitCode=([0-9]+:[0-9]+) ]] || state+=" ${BASH_REMATCH[1]}"
            [[ ! $line =~ \ ReqNodeList=([^ ]+) ]] || ends[${BASH_REMATCH[1]}]=$state
        done <<<"$reply"
    done
}

until_none() { # PATTERN SECONDS: waits until no task's state matches
    local until=$((SECONDS + $2)) node left=yes
    while [[ -n $left ]] && ((SECONDS < until)); do
        sleep 2
        ask || continue
        left=''
        for node in "${nodes[@]}"; do
            [[ ! ${ends[$node]:-PENDING} =~ $1 ]] || left=yes
        done
    done
}

verdict() { # NODE: prints it
    case ${ends[$1]:-} in
        'COMPLETED 0:0') echo 'healthy' ;;
        'FAILED 1:0') echo "drained: $(timeout 10 scontrol --oneliner show node "$1" | sed -nE 's/.* Reason=(.*) \[.*/\1/p')" ;;
        'FAILED 4:0') echo 'suspicious: slower than its baseline, not confirmed yet' ;;
        'FAILED 3:0') echo 'no verdict: the check failed on the node' ;;
        CANCELLED* | PREEMPTED*) echo 'no verdict: preempted, or not started in time' ;;
        *) echo "no verdict: the job ended as ${ends[$1]:-unknown}" ;;
    esac
}

report() { # prints a line per node; returns 1 if one was drained
    local node line drained=0
    for node in "${nodes[@]}"; do
        line=$(verdict "$node")
        [[ $line != drained* ]] || drained=1
        printf '%s %s\n' "$node" "$line"
    done
    return "$drained"
}

read_options "$@"
for each in sinfo sbatch scontrol scancel; do
    command -v "$each" >/dev/null || fail 3 "$each not found: add Slurm's commands to PATH"
done
list_idle
((${#nodes[@]})) || { log "no node is idle" && exit 0; }
trap 'exit 130' INT
trap 'exit 143' TERM
trap '((${#jobs[@]} == 0)) || timeout 30 scancel "${jobs[@]}" 2>/dev/null' EXIT
for ((first = 0; first < ${#nodes[@]}; first += 1000)); do # MaxArraySize is 1001 unless set
    submit "${nodes[@]:first:1000}"
done
until_none '^PENDING' "$start"
timeout 30 scancel --state=PENDING "${jobs[@]}"
until_none "$unfinished" "$longest"
report
