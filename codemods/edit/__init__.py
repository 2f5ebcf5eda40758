"""Edits of text, of items between commas, and of imports, that keep every comment."""
