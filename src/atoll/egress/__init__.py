"""The one door out: which hosts a sandbox may reach, and the process that takes it there."""
