"""What outlives a request: files, batches, stored answers."""
