"""Stands in for xformers, as far as DINOv2 asks for it."""
