"""What makes the matrix libraries of a CPU give the same bits for the same numbers, wherever these are in memory.

FSDP1 computes with views into a flat parameter, FSDP2 with tensors of their own. MKL chooses its kernel by the alignment of
its operands, too, unless it is told not to. COMPATIBLE would give the same bits on other processors as well, at half the
speed; the runs that are compared share one. oneDNN (bfloat16, float16, convolutions) and OpenBLAS have no such setting: at
sixteen alignments of their operands they gave the same bits.
"""

from collections.abc import Mapping

SETTINGS: Mapping[str, str] = {"MKL_CBWR": "AUTO,STRICT"}
"""Environment variables, for before the first multiplication; a value of the user's goes first."""
