"""The namespaces engine: Linux namespaces, a system-call filter, Landlock and cgroups; no root needed."""
