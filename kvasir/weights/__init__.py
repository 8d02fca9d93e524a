"""Where a model's weights come from."""
