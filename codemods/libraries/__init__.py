"""FSDP1 that another library calls: what is set for Accelerate, transformers, axolotl, Lightning and verl."""
