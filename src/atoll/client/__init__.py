"""The Python SDK: `Sandbox`, and `AsyncSandbox` with the same names."""
