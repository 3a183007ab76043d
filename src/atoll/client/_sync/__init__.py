# Generated from _async by tools/generate_sync.py; edit that.
"""The SDK for programs that wait."""
