"""Routes of the node's HTTP API, one file per noun."""
