"""What steps cost, when requests start and end, and what happened when."""
