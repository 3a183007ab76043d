# Turns a container into a machine with systemd, of which it is process 1.
set -e
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
exec /lib/systemd/systemd
