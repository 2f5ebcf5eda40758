"""FSDP1 that is set, not called: configuration of Accelerate, transformers and axolotl, as files and as Python literals.

A file or a literal is read into a tree of settings (`tree`, `reading`), and translated by one table (`table`, `sections`,
`translate`), whose changes become edits of the text (`edits`); command lines are reported (`launching`).
"""
