"""The SDK for event loops, written by hand; `_sync` is generated from it."""
