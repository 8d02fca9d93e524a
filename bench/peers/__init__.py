"""Other engines beside Kvasir: ``python -m bench.peers --help``, from the repository's root.

Imports nothing: parts of it run inside the environments of the others.
"""
