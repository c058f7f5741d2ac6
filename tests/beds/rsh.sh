#!/bin/sh
# rsh.sh [OPTIONS] HOST CMD...   looks like ssh to a launcher (mpiexec -launcher-exec, mpirun --prtemca plm_ssh_agent), reaches a bed's host instead.
while :; do
    case ${1:-} in
    -l | -p | -o | -i) shift 2 ;;
    -*) shift ;;
    *) break ;;
    esac
done
host=$1
shift
# ssh hands the words to the far shell as one line, and launchers quote for that
exec "$(dirname "$(readlink -f "$0")")/on_host.sh" "$host" sh -c "$*"
