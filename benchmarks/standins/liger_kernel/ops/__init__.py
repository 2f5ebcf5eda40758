"""Torch has what they compute."""
