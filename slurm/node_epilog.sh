#!/bin/bash
# A look at a node after a job that a signal ended: as Slurm's Epilog.
usage="\
node_epilog.sh, called by slurmd

Where a signal of EPILOG_SIGNALS ended the job or one of its steps, the node is looked at as node_probe.sh does, and with EPILOG_CHECK=yes
measured as node_check.sh does, where no other job is on it. After any other end it costs nothing. Exit code 0 always: Slurm drains a node
whose Epilog fails; this one drains it itself, with Reason=\"[collbench] CBnnnn …\", and never for a failure of its own."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0
# What slurmd says of the job's end; it says 0:0 of a job that Slurm ended: cancelled, out of time, or its node down.
code=${SLURM_JOB_EXIT_CODE2:-} derived=${SLURM_JOB_DERIVED_EC:-}
[[ $code =~ ^[0-9]+:[0-9]+$ ]] || code=0:0
[[ $derived =~ ^[0-9]+$ ]] || derived=0

ask_slurm() { # one question to the controller for each node of each job, hence only with EPILOG_ASKS=yes
    local told
    told=$(within 5 scontrol --oneliner show job "$job" 2>/dev/null)
    [[ ! $told =~ \ ExitCode=([0-9]+:[0-9]+) ]] || code=${BASH_REMATCH[1]}
    [[ ! $told =~ (JobState=NODE_FAIL|Reason=NodeDown) ]] || failed=yes
}

signals() { # 0:9 is a signal, and so is a shell's 137:0; a step's end is as wait(2) has it
    local each
    for each in "${code#*:}" "$((${code%:*} - 128))" "$((derived & 127))" "$(((derived >> 8) - 128))"; do
        ((each <= 0)) || printf '%s ' "$each"
    done
}

look() { # whether the job's end is one after which the node is to be looked at; then $end says which
    local each failed=''
    [[ -z ${EPILOG_ASKS:-} ]] || ask_slurm
    end='the failure of a node'
    [[ -z $failed ]] || return 0
    for each in $(signals); do
        end="signal $each"
        [[ " ${EPILOG_SIGNALS:-} " != *" $each "* ]] || return 0
    done
    return 1
}

measure() { # by node_check.sh, to which this is the time before a job: the node is nobody's
    local found
    found=$(state) || give_up "Slurm does not say whether another job is on this node"
    [[ ! $found =~ ALLOC|MIX ]] || give_up "another job is on this node ($found), so it is not measured"
    SLURMD_NODENAME=$node SLURM_JOB_ID=$job "$here/node_check.sh"
}

(($# == 0)) || { printf '%s\n' "$usage" && exit 0; }
read_settings
look || exit 0
be_ready
say "job $job was ended by $end: a look at the node"
(probe) # for itself: where it drains, the Epilog has not failed
drained=$?
((drained == 1)) || [[ -z ${EPILOG_CHECK:-} ]] || measure
exit 0
