"""FSDP1 that another library calls: what is set for Accelerate, transformers, axolotl, Lightning, verl and Composer.

rules       what is said of it, in Python and in files
settings    calls, dictionaries and variables of a Python file
words       words of transformers' `fsdp` that stand alone
commands    flags of commands that a Python file starts
lightning   its strategy
composer    settings and functions of Composer and llm-foundry
prepared    models that Accelerate shards
"""
