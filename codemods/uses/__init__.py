"""What is done with a model: uses that are rewritten, or still work."""
