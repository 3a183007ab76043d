"""Lists /dev, and opens devices that lead to memory, disks, drivers and the hypervisor."""

from __future__ import annotations

import os

from tests.security.attacks.kernel import attempt_open, report

DANGEROUS = (
    "mem", "kmem", "port", "kmsg", "kvm", "net/tun", "fuse", "loop-control", "loop0",
    "userfaultfd", "vhost-net", "vhost-vsock", "vsock", "cpu/0/msr", "sda", "vda", "nvme0n1",
    "dm-0", "mapper/control", "uinput", "input/event0", "console", "tty0", "ttyS0", "hvc0",
    "snapshot", "rfkill", "btrfs-control", "ptp0", "sgx_enclave", "dri/card0",
    "vfio/vfio", "uio0", "binder", "autofs", "watchdog", "hpet", "nvram", "rtc0", "bus/usb/001/001",
)  # fmt: skip


def main() -> None:
    answers = {name: attempt_open(f"/dev/{name}", os.O_RDWR) for name in DANGEROUS}
    devices = sorted(name for name in os.listdir("/dev"))
    numbers = {
        name: [os.major(found.st_rdev), os.minor(found.st_rdev)]
        for name in devices
        if (found := os.stat(f"/dev/{name}", follow_symlinks=False)).st_rdev
    }
    report(devices=devices, numbers=numbers, answers=answers)


if __name__ == "__main__":
    main()
