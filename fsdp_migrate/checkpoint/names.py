"""Names of parameters, and what wrappers of a model have put into them."""

from collections.abc import Mapping
from typing import Any

from fsdp_migrate.checkpoint.errors import Refused
from fsdp_migrate.checkpoint.trees import Place, like, mappings, rebuilt, shown

WRAPPERS = {
    "_fsdp_wrapped_module": "FSDP1",
    "_fpw_module": "FSDP1",
    "_checkpoint_wrapped_module": "activation checkpointing",
    "_orig_mod": "torch.compile",
}
"""The components of names by which wrappers hold the wrapped module."""

_NAME_LISTS = (("params",), ("param_names",))
"""Where an optimizer's state dict has names as values."""


def clean(name: str) -> str:
    """The name without the components of wrappers, as a model that was never wrapped has it."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def is_flat(name: object) -> bool:
    """Whether it is a flat parameter's, which holds all parameters of an FSDP1 unit."""
    last = str(name).rpartition(".")[2]
    return last == "_flat_param" or last.startswith(("flat_param_", "_flat_param_"))


def wrapped(tree: Any) -> dict[str, list[str]]:
    """The names that have a wrapper's component, by their first one."""
    found: dict[str, list[str]] = {}
    for _, mapping in mappings(tree):
        for name in map(str, mapping):
            parts = [part for part in name.split(".") if part in WRAPPERS]
            if parts:
                found.setdefault(parts[0], []).append(name)
    return found


def strip(tree: Any) -> Any:
    """The tree with clean names, as keys and in lists of names; raises Refused where two become the same."""
    return rebuilt(tree, _stripped)


def _stripped(place: Place, node: Any) -> Any:
    if isinstance(node, list) and place[-1:] in _NAME_LISTS:
        return [clean(item) if isinstance(item, str) else item for item in node]
    if not isinstance(node, Mapping):
        return node
    renamed: dict[Any, Any] = {}
    for key, value in node.items():
        new = key
        if isinstance(key, str):
            new = clean(key)
        if new in renamed:
            name = shown((*place, new))
            raise Refused(f"two names become {name} without what wrappers put into them")
        renamed[new] = value
    stripped = like(node, renamed.items())
    if (versions := getattr(stripped, "_metadata", None)) is not None:
        cleaned = {clean(name): version for name, version in versions.items()}
        stripped._metadata = type(versions)(cleaned)  # type: ignore[attr-defined]
    return stripped
