#!/bin/busybox sh
# init.sh   the first process of the VM, in its initial ramdisk: makes the machine's own files the root, read-only, and goes on there (start.sh).
busybox=/bin/busybox

$busybox mount -t devtmpfs none /dev
$busybox mount -t proc none /proc
$busybox mount -t sysfs none /sys
while read -r module; do
    $busybox insmod "/modules/$module"
done </modules/order

$busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=262144,cache=loose root /root
for folder in dev proc sys; do
    $busybox mount -o move "/$folder" "/root/$folder"
done
read -r start </start
exec $busybox switch_root /root "$start"
