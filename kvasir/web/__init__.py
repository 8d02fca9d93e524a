"""The page: files that a browser reads, and how they are sent. They need no build."""
