"""Atoll in the manner of other programs; built on the client, as any user's code is. Each is loaded only when it is asked for."""
