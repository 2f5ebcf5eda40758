"""FSDP1 that another library calls: what is set for Accelerate, transformers, axolotl, Lightning and verl.

rules       what is said of it, in Python and in files
settings    calls, dictionaries and variables of a Python file
prepared    models that Accelerate shards
"""
