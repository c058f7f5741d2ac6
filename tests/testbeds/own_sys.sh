# Sourced. own_sys NAME BED   make this mount namespace that of host NAME of the test bed in folder BED: its name, /sys, /etc/hosts.
#
# /sys is mounted again, since it shows the interfaces of the namespace that mounted it; /sys/fs/cgroup is bound again, since slurmd does not
# start without it.
own_sys() {
    set -e
    hostname "$1"
    mount -t tmpfs none /mnt
    mkdir /mnt/cgroup
    mount --rbind /sys/fs/cgroup /mnt/cgroup
    mount -t sysfs none /sys
    mount --rbind /mnt/cgroup /sys/fs/cgroup
    umount -l /mnt
    mount --bind "$2/hosts.$1" /etc/hosts
}
