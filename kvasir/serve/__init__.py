"""HTTP server and the transports between it and the engine."""
