"""FSDP1 that is set, not called: configuration of Accelerate, transformers and axolotl, as files and as Python literals.

A file or a literal is read into a tree of settings (`tree`, `reading`), translated by one table (`translate`), and changed
where its settings are (`edits`): every other byte stays.
"""
