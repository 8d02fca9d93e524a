"""The ``kvasir`` command."""
