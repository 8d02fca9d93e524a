"""What slows answers down, done to real servers, and what these say of it."""
