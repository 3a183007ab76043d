"""Cgroups: limits of memory, processes and cpu for each sandbox, on v1, v2 and hybrid layouts.

Every engine has one directory per hierarchy, every sandbox one below it. On v1 the child enters by writing to
`tasks` files that were opened here; on v2 it is cloned into its directory.
"""
