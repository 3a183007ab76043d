"""The SDK's sandboxes on a server, over HTTP and WebSockets; knows no node. Loaded with the first address."""
