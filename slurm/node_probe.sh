#!/bin/bash
# Checks a node with collbench doctor in less than 10 s, without measuring: as Slurm's Prolog.
usage="\
node_probe.sh [--learn | --no-drain]

  --learn      write the node's hardware into GOOD (node_check.conf): do this on a healthy node
  --no-drain   print the reason on stdout instead of draining the node

A severe finding of \`collbench doctor\` drains the node if its code is in DRAIN_FOR, with Reason=\"[collbench] CBnnnn …\". With GOOD, a
GPU, NIC or link that has disappeared is such a finding. Exit code 1: the node is drained, and Slurm starts the job elsewhere. Exit code
0: anything else, including failures of this script, which are reported on stderr: a failing tool must not drain a node."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0

learn() { # replaces the file in one step, so that a prolog never reads a part
    local file=${GOOD:-}
    file=${file//%n/$node}
    trap - EXIT
    [[ -n $file ]] || { log "set GOOD in $here/node_check.conf to the file to write" && exit 1; }
    mkdir -p "$(dirname "$file")" && "$COLLBENCH" probe --format json >"$file.new" && mv "$file.new" "$file" && log "wrote $file"
    exit
}

learning=''
case ${1:-} in
    '') ;;
    --learn) learning=yes ;;
    --no-drain) quiet=yes ;;
    *) printf '%s\n' "$usage" && exit 0 ;;
esac
read_settings
be_ready
[[ -z $learning ]] || learn
probe
exit 0
