"""What a request may ask for: each field checked, and resolved to what the engine computes."""
