"""The server: one TCP port for the page, the WebSocket dialects, health and metrics."""
