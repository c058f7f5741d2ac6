#!/bin/sh
# on_host.sh HOST CMD...   run CMD as if logged in on HOST, a network namespace of a test bed (hosts.py): its network, host name, /sys, /etc/hosts.
# It (own_sys.sh) uses a mount namespace of its own for this command, so there is nothing to undo.
host=$1
shift
number=${host#cb}
bed=/run/collbench-beds/${number%%h*}

# A host that has processes, memory and disks of its own (machines.py) is entered as it is. What waits for the command is a shell: nsenter
# itself would stop with it.
if [ -e "$bed/machines/$host" ]; then
    exec nsenter --target "$(cat "$bed/machines/$host")" --net --uts --ipc --pid --mount --no-fork sh -c '
        cd "$0" 2>/dev/null || cd /
        "$@" <&0 &
        wait $!' "$PWD" "$@"
fi

exec nsenter --net="/run/netns/$host" unshare --uts --mount sh -c '
    . "$3/own_sys.sh"
    own_sys "$1" "$2"
    shift 3
    exec "$@"' on_host "$host" "$bed" "$(dirname "$(readlink -f "$0")")" "$@"
