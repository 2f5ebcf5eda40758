"""FSDP1 that is set, not called: configuration of Accelerate, transformers and axolotl, as files and as Python literals.

A file or a literal is read into a tree of settings (`tree`, `reading`), and translated by one table (`table`, `sections`,
`translate`); command lines are reported (`launching`). Who asks, files or calls in Python, edits their text.
"""
