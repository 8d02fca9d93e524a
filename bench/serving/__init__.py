"""What clients of one server see of each other."""
