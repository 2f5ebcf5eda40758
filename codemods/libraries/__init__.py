"""FSDP1 that another library calls: what is set for Accelerate, transformers, axolotl, Lightning and verl.

rules       what is said of it, in Python and in files
settings    calls and dictionaries of a Python file
edits       changes of settings as edits of a text
"""
