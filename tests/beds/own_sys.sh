# Sourced. own_sys NAME BED   makes this mount namespace one of a host NAME of the bed whose folder is BED: its name, /sys, /etc/hosts.
#
# /sys is mounted afresh because it shows the interfaces of the namespace that mounted it; /sys/fs/cgroup is carried over because slurmd will not start
# without.
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
