"""A model as a program: values, ops with references, and transformations."""
