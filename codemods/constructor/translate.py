"""What one value of an FSDP1 argument is in plain PyTorch: the same table for what a file shows and for what a run recorded.

A value is described by what its text cannot hide: a strategy is the name of its member, a `MixedPrecision` its fields, a
policy the names of the classes that become units. Where a file shows several values that an argument can have, each is
translated where it is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fsdp_migrate.codemods.constructor.construction import FREE
from fsdp_migrate.codemods.constructor.plain import Plain, Stays
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.names import RUNTIME, TORCH

# FULL_SHARD leaves the choice to FSDP2: freed after forward below the root, kept at the root.
_RESHARD = {
    None: "None",
    "FULL_SHARD": "None",
    "HYBRID_SHARD": "None",
    "NO_SHARD": "None",
    "SHARD_GRAD_OP": "False",
    "_HYBRID_SHARD_ZERO2": "False",
}
HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
MESH_DIM_NAMES = ("replicate", "shard")
_TYPES = ("param_dtype", "reduce_dtype")


def translated(name: str, value: object) -> Plain:
    """What one value of an argument adds to the plain form.

    Args:
        name: the argument in FSDP1's signature.
        value: None for all that are left out or None, and
            `sharding_strategy`: the name of a member, as "SHARD_GRAD_OP";
            `mixed_precision`: the fields that are not None by name, types as source ("torch.bfloat16"), flags as bool;
            `cpu_offload`: whether parameters are offloaded;
            `auto_wrap_policy`: the classes of the units, as source; FSDP1 makes no unit of the root by a policy;
            `sync_module_states` and the arguments without effect: their value.

    Raises:
        Stays: if only the runtime has this value; the text says why.
    """
    if name == "sharding_strategy":
        text = reshard_after_forward(value)
        return Plain(shared={} if text == "None" else {"reshard_after_forward": text})
    if name == "mixed_precision":
        assert value is None or isinstance(value, Mapping)
        return _precision(value)
    if name == "cpu_offload":
        need = (Import(TORCH, "CPUOffloadPolicy"),)
        given = {"offload_policy": offload_policy(bool(value))}
        return Plain(shared=given, imports=need) if value else Plain()
    if name == "auto_wrap_policy":
        assert value is None or isinstance(value, Sequence)
        return Plain(units=unit_condition(value)) if value else Plain()
    if name == "sync_module_states":
        need = (Import(RUNTIME, "broadcast_module_states"),)
        return (
            Plain(above=("broadcast_module_states({model})",), imports=need) if value else Plain()
        )
    if name == "forward_prefetch" and value:
        return Plain("the numbers are the same; set_modules_to_forward_prefetch asks for it")
    if name in FREE or not value:
        return Plain()
    raise Stays(f"only the bridge supports {name}={value!r}")


def reshard_after_forward(member: object) -> str:
    """The value of `reshard_after_forward` for a strategy, as source.

    NO_SHARD and the hybrid ones need their mesh as well (see `mesh`): alone they would be FULL_SHARD.
    """
    return _RESHARD[member]  # type: ignore[index]


def mesh(member: str, device_type: str, shard: int, world: str) -> str:
    """The mesh of NO_SHARD or of a hybrid strategy, as source.

    Args:
        device_type: as source.
        shard: how many ranks shard, under a hybrid strategy.
        world: how many ranks there are, as source.
    """
    shape = f"{world} // {shard}, {shard}" if member in HYBRID else f"{world}, 1"
    names = f"mesh_dim_names={MESH_DIM_NAMES}".replace("'", '"')
    return f"init_device_mesh({device_type}, ({shape}), {names})"


def offload_policy(offloads: bool) -> str:
    """The policy that offloads, or does not, as source."""
    return "CPUOffloadPolicy()" if offloads else "OffloadPolicy()"


def unit_condition(classes: Sequence[str]) -> str:
    """The condition by which `{module}` is a unit."""
    named = classes[0] if len(classes) == 1 else f"({', '.join(classes)})"
    return f"isinstance({{module}}, {named})"


def mp_policy(fields: Mapping[str, object], *, below: bool) -> str:
    """The policy of the root, or of the units below it, as source.

    FSDP1 casts the inputs of the root for either flag (`_runtime_utils.py`, `_root_pre_forward` and `_pre_forward`), and
    those below for `cast_forward_inputs` alone.
    """
    given = [f"{name}={fields[name]}" for name in _TYPES if name in fields]
    if not casts(fields, below=below):
        given.append("cast_forward_inputs=False")
    return f"MixedPrecisionPolicy({', '.join(given)})"


def beside_batch_norm(whole: Plain, name: str) -> Plain:
    """The plain form of a model whose BatchNorms FSDP1 keeps in full precision, in units of their own.

    FSDP1 does so where both `mixed_precision` and a policy are given (`_wrap_utils.py`, `_auto_wrap`), and casts none of
    their buffers.

    Args:
        name: what a policy is called that all other units share.
    """
    shared = {key: value for key, value in whole.shared.items() if key != "mp_policy"}
    above = [
        re.sub(r"(cast_buffers\(.*)\)", r"\1, keep_classes=[_BatchNorm])", a) for a in whole.above
    ]
    given = {}
    if "mp_policy" in whole.shared:
        above.append(f"{name} = {whole.shared['mp_policy']}")
        given = {"mp_policy": name}
    norm = Import("torch.nn.modules.batchnorm", "_BatchNorm")
    return replace(
        whole,
        shared=shared,
        child=whole.child | given,
        root=whole.root | given,
        norms=True,
        above=tuple(above),
        imports=(*whole.imports, norm, Import(RUNTIME, "run_in_full_precision")),
    )


def casts(fields: Mapping[str, object], *, below: bool) -> bool:
    """Whether a unit's inputs are cast: the root's, or those of the units below it."""
    everywhere = bool(fields.get("cast_forward_inputs", False))
    return everywhere or (not below and bool(fields.get("cast_root_forward_inputs", True)))


def _precision(fields: Mapping[str, object] | None) -> Plain:
    if fields is None:
        return Plain()
    if fields.get("keep_low_precision_grads", False):
        raise Stays("mixed_precision: keep_low_precision_grads has no counterpart")
    if "_module_classes_to_ignore" in fields:
        raise Stays("mixed_precision: the classes that it leaves out are the program's own")
    above: tuple[str, ...] = ()
    imports: tuple[Import, ...] = ()
    if "buffer_dtype" in fields:
        above = (f"cast_buffers({{model}}, {fields['buffer_dtype']})",)
        imports = (Import(RUNTIME, "cast_buffers"),)
    if not any(name in fields for name in _TYPES):
        return Plain(above=above, imports=imports)
    imports = (*imports, Import(TORCH, "MixedPrecisionPolicy"))
    root, child = (mp_policy(fields, below=below) for below in (False, True))
    if root == child:
        return Plain(shared={"mp_policy": root}, above=above, imports=imports)
    return Plain(child={"mp_policy": child}, root={"mp_policy": root}, above=above, imports=imports)
