"""HTTP and WebSocket, and what a served node is set up with: settings and logs."""
