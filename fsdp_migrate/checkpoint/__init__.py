"""`fsdp-migrate checkpoint`: what a checkpoint is, whether FSDP2 can load it, and the conversion where it cannot.

A checkpoint is read into a tree of plain containers (`sources`). Its files are mapped, not loaded (`files`, `dcp`),
and its pickles are not executed (`pickles`). Tensors that lie in several places are `Parts` (`parts`). Problems are
found on the tree (`survey`) and repaired on the tree (`convert`); torch writes the result, which is read back
(`write`).
"""
