"""KV blocks in files: found again after they were evicted, and after a restart."""
