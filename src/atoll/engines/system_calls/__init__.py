"""Which system calls code in a sandbox may make, whatever engine made it."""
