"""Measurements that carry the machine, its ceilings and the command with them."""
