/* Workspaces that are kept in an image of their own. */
#pragma once

/* Mounts the ext4 file system in an open file and returns the detached mount, or -errno. The file stays open, with
 * the locks on it, for exactly as long as the file system is mounted anywhere. */
int mount_image(int image);
