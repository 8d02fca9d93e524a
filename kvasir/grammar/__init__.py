"""What an answer must keep to: from schemas and grammars to masks."""
