"""Words of the domain. Imports nothing of ours."""
