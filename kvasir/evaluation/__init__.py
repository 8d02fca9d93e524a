"""How good a model's answers are: perplexity of a text, and how far from another model it is."""
