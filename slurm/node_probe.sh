#!/bin/bash
# A look at one node in less than 10 s, without measuring anything: as Slurm's Prolog.
usage="\
node_probe.sh [--learn | --no-drain]

  --learn      write what the node has into GOOD (node_check.conf): on a node that is known to be good
  --no-drain   say on stdout why the node would be drained, and leave that to the caller

What \`collbench doctor\` finds severe drains the node where its code is in DRAIN_FOR, with Reason=\"[collbench] CBnnnn …\"; with GOOD that
is also a GPU, a NIC or a link that the node had and lacks now. Exit code 1: so it is, and Slurm sends the job elsewhere. Exit code 0:
everything else, our own failures among it, which are told on stderr: a tool that fails must not drain a node."
set -uo pipefail
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # fixed: Slurm gives a hook none, and bash may then search "."

slot=8
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR source=node_common.sh
source "$here/node_common.sh" || exit 0

learn() { # in one step: a prolog that reads it meanwhile finds the old one, or the new
    local file=${GOOD:-}
    file=${file//%n/$node}
    trap - EXIT
    [[ -n $file ]] || { say "set GOOD in $here/node_check.conf, the file to write" && exit 1; }
    mkdir -p "$(dirname "$file")" && "$COLLBENCH" probe --format json >"$file.new" && mv "$file.new" "$file" && say "wrote $file"
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
