"""Models on this machine by name: pulled from a hub, linked from elsewhere, made of others."""
