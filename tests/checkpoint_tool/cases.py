"""What is converted after it was written on two ranks, and loaded into FSDP2."""

# The source, what it is converted to, the file that holds the same in whole tensors.
CASES = (
    ("full-flat.pt", "dcp", "full-flat.pt"),
    ("full-flat.pt", "full", "full-flat.pt"),
    ("full-orig.pt", "dcp", "full-orig.pt"),
    ("dcp-flat", "full", "full-flat.pt"),
    ("dcp-orig", "dcp", "full-orig.pt"),
    ("ranks-orig", "dcp", "full-orig.pt"),
    ("ranks-orig/model_rank1.pt", "full", "full-orig.pt"),
    ("ranks-flat", "full", "full-flat.pt"),
    ("ranks-mesh", "full", "mesh.pt"),
    ("ranks-fsdp2", "dcp", "fsdp2.pt"),
)


def name_of(source: str, to: str) -> str:
    """The name of a case, which its result and what it writes have."""
    return f"{source.replace('/', '-').replace('.', '-')}-to-{to}"
