#!/bin/bash
# Checks a node after a job that ended by a signal: as Slurm's Epilog.
usage="\
node_epilog.sh, called by slurmd

If a signal of EPILOG_SIGNALS ended the job or one of its steps, the node is checked as by node_probe.sh. With EPILOG_CHECK=yes it is also
measured as by node_check.sh, unless another job runs on it. After any other end nothing is done. The exit code is always 0, since Slurm
drains a node if its Epilog fails; this script drains it itself, with Reason=\"[collbench] CBnnnn …\", but not for its own failures."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0
# The job's exit code from slurmd; 0:0 for a job that Slurm ended: cancelled, time limit, or node down.
code=${SLURM_JOB_EXIT_CODE2:-} derived=${SLURM_JOB_DERIVED_EC:-}
[[ $code =~ ^[0-9]+:[0-9]+$ ]] || code=0:0
[[ $derived =~ ^[0-9]+$ ]] || derived=0

ask_slurm() { # one query of the controller per node and job, hence only with EPILOG_ASKS=yes
    local reply
    reply=$(within 5 scontrol --oneliner show job "$job" 2>/dev/null)
    [[ ! $reply =~ \ ExitCode=([0-9]+:[0-9]+) ]] || code=${BASH_REMATCH[1]}
    [[ ! $reply =~ (JobState=NODE_FAIL|Reason=NodeDown) ]] || failed=yes
}

signals() { # prints the signals: 0:9, a shell's 137:0, and a step's status as of wait(2)
    local each
    for each in "${code#*:}" "$((${code%:*} - 128))" "$((derived & 127))" "$(((derived >> 8) - 128))"; do
        ((each <= 0)) || printf '%s ' "$each"
    done
}

look() { # whether the node must be checked after this job; sets $end to the cause
    local each failed=''
    [[ -z ${EPILOG_ASKS:-} ]] || ask_slurm
    end='a node failure'
    [[ -z $failed ]] || return 0
    for each in $(signals); do
        end="signal $each"
        [[ " ${EPILOG_SIGNALS:-} " != *" $each "* ]] || return 0
    done
    return 1
}

measure() { # by node_check.sh, as in a prolog: no job may run on the node
    local found
    found=$(state) || give_up "cannot get the node's state from Slurm"
    [[ ! $found =~ ALLOC|MIX ]] || give_up "another job runs on this node ($found), so it is not measured"
    SLURMD_NODENAME=$node SLURM_JOB_ID=$job "$here/node_check.sh"
}

(($# == 0)) || { printf '%s\n' "$usage" && exit 0; }
read_settings
look || exit 0
be_ready
log "job $job was ended by $end: checking the node"
(probe) # in a subshell: its exit code 1 must not fail the Epilog
drained=$?
((drained == 1)) || [[ -z ${EPILOG_CHECK:-} ]] || measure
exit 0
