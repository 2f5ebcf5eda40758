"""`fsdp-migrate checkpoint`: what a checkpoint is, whether FSDP2 can load it, and the conversion where it cannot.

A checkpoint is read into a tree of plain containers (`sources.py`). Its files are mapped, not loaded (`files.py`, `dcp.py`),
and its pickles are read without executing them (`pickles.py`). Tensors that lie in several places are `Parts`
(`parts.py`). Problems are found on the tree (`survey.py`) and repaired on the tree (`convert.py`); torch writes the
result and reads it back (`write.py`).
"""
