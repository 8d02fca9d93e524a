"""What answers look like, as types: the OpenAPI document says them, and tests hold answers to them.

Where a field may be absent it is ``NotRequired``; other fields than these an answer never has."""
