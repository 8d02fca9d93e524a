"""An hour of faults under a steady load; ``python -m tests.endurance`` runs one."""
