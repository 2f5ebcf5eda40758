"""`fsdp-migrate checkpoint`: what a checkpoint is, whether FSDP2 can load it, and the conversion where it cannot.

A checkpoint is read into a tree of plain containers (`sources`): of a file, whose tensors torch maps (`files`), of DCP's
folders (`dcp`), or of the files of all ranks (`ranks`, `shards`). Pickles are not executed (`pickles`). Tensors that lie
in several places are `Parts` (`parts`). Problems are found on the tree (`survey`) and repaired on the tree (`convert`);
torch writes the result, which is moved to its place when it is whole.
"""
