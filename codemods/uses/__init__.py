"""What is done with a model: found, and made plain with it."""
