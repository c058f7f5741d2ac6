#!/bin/sh
# rsh.sh [OPTIONS] HOST CMD...   replacement of ssh for a launcher (mpiexec -launcher-exec, mpirun --prtemca plm_ssh_agent): runs CMD on a host of a test bed.
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
