/* Mounts an image by way of a loop device that goes away by itself with the last mount, whoever is killed meanwhile. */
#define _GNU_SOURCE
#include "images.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <linux/mount.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ATTEMPTS 64

/* Returns a loop device that shows the image, with its path in `path`, or -errno. */
static int open_loop(int image, char *path, size_t size)
{
    struct loop_config config = {.fd = (uint32_t)image, .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    int device = control < 0 ? -errno : -EBUSY;
    /* Somebody else may be given the same free one. */
    for (int i = 0; i < ATTEMPTS && device == -EBUSY; i++) {
        int number = ioctl(control, LOOP_CTL_GET_FREE);
        snprintf(path, size, "/dev/loop%d", number);
        device = number < 0 ? -errno : open(path, O_RDWR | O_CLOEXEC);
        if (number >= 0 && device < 0)
            device = -errno;
        if (device >= 0 && ioctl(device, LOOP_CONFIGURE, &config)) {
            int error = -errno;
            close(device);
            device = error;
        }
    }
    if (control >= 0)
        close(control);
    return device;
}

static int configure(int context, const char *device)
{
    /* What is deleted inside is given back to the host; what is damaged is not written to any more. */
    if (syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "source", device, 0) ||
        syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "errors", "remount-ro", 0) ||
        syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, "discard", 0, 0) ||
        syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0))
        return -errno;
    return 0;
}

static int mount_device(const char *device)
{
    int context = (int)syscall(SYS_fsopen, "ext4", FSOPEN_CLOEXEC);
    if (context < 0)
        return -errno;
    int outcome = configure(context, device);
    if (!outcome) {
        outcome = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
        outcome = outcome < 0 ? -errno : outcome;
    }
    close(context);
    return outcome;
}

int mount_image(int image)
{
    char device[32];
    int loop = open_loop(image, device, sizeof device);
    if (loop < 0)
        return loop;
    int mount_fd = mount_device(device);
    close(loop); /* the mount holds it from here on */
    return mount_fd;
}
