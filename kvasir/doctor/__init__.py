"""What is wrong with a machine, an installation or a model, what it costs, and the cure."""
