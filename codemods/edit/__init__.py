"""Edits of text, call arguments and imports that keep every comment."""
