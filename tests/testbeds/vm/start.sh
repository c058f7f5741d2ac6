#!/bin/sh
# start.sh   the VM's second and last stage: lays software RDMA over its network card, runs the command it was started for, turns itself off.
#
# /mnt is the bed's shared folder, the only place that can be written to: `command` lies there; `stdout`, `stderr` and `code` are left there.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/run PYTHONDONTWRITEBYTECODE=1
mount -t tmpfs none /run
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144 share /mnt

{
    modprobe virtio_net && modprobe rdma_rxe && modprobe ib_uverbs &&
        ip link set lo up && ip link set eth0 up && rdma link add rxe0 type rxe netdev eth0 &&
        sh /mnt/command
    echo $? >/mnt/code
} >/mnt/stdout 2>/mnt/stderr

sync
echo o >/proc/sysrq-trigger
sleep 60
