"""Images: how they become tiles, and a process that reads them and may die of it."""
