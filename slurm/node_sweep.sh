#!/bin/bash
# Checks the nodes that are idle, all at once, each in a short job of its own: from cron on a login node, or by hand.
usage="\
node_sweep.sh [OPTIONS] [-- OPTIONS OF sbatch, such as --account=ops --qos=scavenger]

  --partition NAME   whose idle nodes (default: those of Slurm's default partition)
  --start SECONDS    jobs that have not begun by then are cancelled: the node went to a user (default: 90)
  --keep DIR         a folder that the nodes share: what each check said (default: nowhere)

One job array whatever the number of nodes (two from 1,001 on), a task for each node: node_check.sh of this same folder on that node, alone
on it, for two minutes at most, behind every other job in the queue (--nice). node_check.sh drains by its own rule; who calls this has to be
allowed to drain, and its KEEP writable for him. One line on stdout for each node. Exit codes: 0 no node was drained, 1 some were, 2 bad
input, 3 the sweep failed, and nothing is known of any node, 130/143 signals; then its jobs are cancelled."
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
partition='' start=90 keep='' options=() nodes=() jobs=()
longest=180                # seconds: two minutes of the job, and Slurm's own to end it
lowest_priority=2147483645 # as low as --nice goes
declare -A ends=()         # by node: its task's state and exit code
unfinished='^(PENDING|CONFIGURING|RUNNING|COMPLETING|SUSPENDED|STAGE_OUT|SIGNALING|STOPPED|RESIZING)'

say() { printf 'node_sweep.sh: %s\n' "$*" >&2; }

fail() { # CODE SENTENCE
    say "$2"
    exit "$1"
}

read_options() {
    while (($#)); do
        case $1 in
            -h | --help) printf '%s\n' "$usage" && exit 0 ;;
            --) shift && options=("$@") && break ;;
        esac
        (($# > 1)) || fail 2 "$1: its value is missing, or there is no such option; see node_sweep.sh --help"
        case $1 in
            --partition) partition=$2 ;;
            --start) start=$2 ;;
            --keep) keep=$2 ;;
            *) fail 2 "there is no option $1: see node_sweep.sh --help; what is for sbatch comes after --" ;;
        esac
        shift 2
    done
    [[ $start =~ ^[1-9][0-9]{0,3}$ ]] || fail 2 "--start $start: a whole number from 1 to 9999 is wanted"
    [[ -z $keep || (-d $keep && -w $keep) ]] || fail 2 "--keep $keep is no folder that can be written"
    [[ -z $keep ]] || keep=$(cd "$keep" && pwd)
}

list_idle() { # into $nodes; idle* does not respond, idle~ is powered off, plnd and resv are promised to somebody
    local told name state where
    told=$(timeout 30 sinfo --noheader --Node --states=idle ${partition:+--partition="$partition"} --format='%N %t %P') ||
        fail 3 "sinfo does not say which nodes are idle"
    while read -r name state where; do
        [[ $state == idle && $name =~ ^[A-Za-z0-9][A-Za-z0-9._-]*$ ]] || continue
        [[ -z $partition && $where != *'*' ]] || nodes+=("$name")
    done <<<"$told"
}

job_script() { # NODE…: stops where Slurm gave another node than asked for, or nothing is installed
    cat <<END
#!/bin/bash
nodes=($*)
[[ \${nodes[SLURM_ARRAY_TASK_ID]} == "\$SLURMD_NODENAME" && -r $(printf %q "$here")/node_common.sh ]] || exit 3
exec $(printf %q "$here")/node_check.sh --sweep
END
}

submit() { # NODE…: one array, held until each of its tasks is bound to its node; three processes for a thousand nodes
    local told job index output=/dev/null
    [[ -z $keep ]] || output=$keep/%A_%a.txt
    told=$(job_script "$@" | timeout 30 sbatch --parsable --hold --array="0-$(($# - 1))" --job-name=collbench-node-sweep --nodes=1 \
        --exclusive --mem=0 --time=2 --nice="$lowest_priority" --no-requeue --export=NONE --output="$output" \
        ${partition:+--partition="$partition"} "${options[@]}") || fail 3 "sbatch refused the job array"
    job=${told%%;*}
    [[ $job =~ ^[0-9]+$ ]] || fail 3 "sbatch says no job's number"
    jobs+=("$job")
    for ((index = 0; index < $#; index++)); do
        printf 'update JobId=%s_%s ReqNodeList=%s\n' "$job" "$index" "${@:index+1:1}"
    done | timeout 120 scontrol >/dev/null || say "not every task of job $job could be bound to its node"
    timeout 30 scontrol release "$job" || fail 3 "scontrol could not release job $job"
}

ask() { # how each task stands, into $ends; 1 when Slurm does not answer
    local job told line state
    for job in "${jobs[@]}"; do
        told=$(timeout 30 scontrol --oneliner show job "$job" 2>/dev/null) || return 1
        while read -r line; do
            [[ $line =~ \ JobState=([A-Z_]+) ]] || continue
            state=${BASH_REMATCH[1]}
            [[ ! $line =~ \ ExitCode=([0-9]+:[0-9]+) ]] || state+=" ${BASH_REMATCH[1]}"
            [[ ! $line =~ \ ReqNodeList=([^ ]+) ]] || ends[${BASH_REMATCH[1]}]=$state
        done <<<"$told"
    done
}

until_none() { # PATTERN SECONDS: no task's state matches
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

verdict() { # NODE: in words
    case ${ends[$1]:-} in
        'COMPLETED 0:0') echo 'well' ;;
        'FAILED 1:0') echo "drained: $(timeout 10 scontrol --oneliner show node "$1" | sed -nE 's/.* Reason=(.*) \[.*/\1/p')" ;;
        'FAILED 4:0') echo 'suspicious: slower than its baseline, and not confirmed yet' ;;
        'FAILED 3:0') echo 'no verdict: the check failed on the node' ;;
        CANCELLED* | PREEMPTED*) echo 'no verdict: it gave way, or did not begin in time' ;;
        *) echo "no verdict: its job ended as ${ends[$1]:-unknown}" ;;
    esac
}

tell() { # a line for each node; 1 where one was drained
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
    command -v "$each" >/dev/null || fail 3 "$each is not found: put Slurm's commands on the PATH"
done
list_idle
((${#nodes[@]})) || { say "no node is idle" && exit 0; }
trap 'exit 130' INT
trap 'exit 143' TERM
trap '((${#jobs[@]} == 0)) || timeout 30 scancel "${jobs[@]}" 2>/dev/null' EXIT
for ((first = 0; first < ${#nodes[@]}; first += 1000)); do # MaxArraySize is 1001 unless set
    submit "${nodes[@]:first:1000}"
done
until_none '^PENDING' "$start"
timeout 30 scancel --state=PENDING "${jobs[@]}"
until_none "$unfinished" "$longest"
tell
