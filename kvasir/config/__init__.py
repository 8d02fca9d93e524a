"""Options (what the user said) become frozen configs (what the engine does), with reasons."""
