"""`fsdp-migrate checkpoint`: what a checkpoint is, whether FSDP2 can load it, and the conversion where it cannot.

A checkpoint is read into a tree of plain containers whose tensors stay on disk (`tensors.py`), whatever
wrote it (`sources.py`); its pickles are read, not executed (`pickles.py`). Problems are found on the tree
(`survey.py`), repaired on the tree (`convert.py`), and the tree is written one tensor at a time (`write.py`)
and read back (`check.py`).
"""
