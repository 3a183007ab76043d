"""The gVisor engine: sandboxes under `runsc`, a second kernel in user space, with no container engine."""
