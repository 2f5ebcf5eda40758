"""What the torch form assumes of every program, and what FSDP1's interface is replaced by, as rows.

The tables on the page of FSDP003 show the same rows; a test compares them.
"""

from typing import NamedTuple

from fsdp_migrate.findings import Severity

# What sets an attribute of a parameter: `p.no_weight_decay = True`, `setattr(p, name, value)`.
SETTING = (
    r"\bsetattr\((?:p|w|param\w*),"
    r"|\b(?:p|w|param\w*|weight|bias)\.(?!data\b|grad\b|requires_grad\b)\w+ = "
)


class Assumption(NamedTuple):
    """One thing that must hold for a program to train as before without `like_fsdp1`.

    Attributes:
        name: what `WORDS` of `lines.py` knows it by.
        severity: how the program shows that it does not hold.
        condition: what must hold.
        consequence: what FSDP1 did and FSDP2 does, where it does not hold.
        switch: the switch of `like_fsdp1` that keeps FSDP1's behaviour; empty if there is none.
    """

    name: str
    severity: Severity
    condition: str
    consequence: str
    switch: str

    @property
    def message(self) -> str:
        """What the finding says."""
        kept = ""
        if self.switch:
            kept = (
                f" `--form auto` keeps FSDP1's behaviour (switch `{self.switch}` of `like_fsdp1`)."
            )
        return f"Assumes {self.condition}: {self.consequence}.{kept}"


# In the order in which a constructor's findings name them.
ASSUMPTIONS = (
    Assumption(
        "zero_gradients",
        Severity.SILENT,
        "every forward pass uses every trained parameter",
        "FSDP1 gave unused parameters a gradient of zeros, so weight decay and momentum still changed them; "
        "FSDP2 leaves them unchanged, and stops or hangs if only some ranks use one",
        "zero_gradients",
    ),
    Assumption(
        "batch_norm",
        Severity.SILENT,
        "no unit in low precision contains a BatchNorm",
        "FSDP1 kept BatchNorm in float32 if it was given an `auto_wrap_policy`, and else ran it in low precision; FSDP2 runs "
        "its weights in low precision. If a unit has one, shard the BatchNorm by itself with `MixedPrecisionPolicy()`, or use "
        "`--form auto`",
        "",
    ),
    Assumption(
        "dataclasses",
        Severity.SILENT,
        "no forward returns a dataclass",
        "before torch 2.12, FSDP2 does not reduce gradients that come through its tensors",
        "",
    ),
    Assumption(
        "older_optimizers",
        Severity.SILENT,
        "the optimizer is created after this line",
        "one created earlier would train nothing, because sharding replaces the parameters",
        "older_optimizers",
    ),
    Assumption(
        "parameter_attributes",
        Severity.SILENT,
        "no code sets attributes on parameters before this line (`p.no_weight_decay = True`)",
        "sharding replaces the parameters, and the attributes are lost",
        "parameter_attributes",
    ),
    Assumption(
        "data_writes",
        Severity.SILENT,
        "no code assigns `p.data = x`",
        "FSDP2 continues with the old memory and ignores `x`",
        "data_writes",
    ),
    Assumption(
        "whole_state_dicts",
        Severity.SILENT,
        "`model.state_dict()` is saved only with `torch.distributed.checkpoint`",
        "it now holds this rank's shards, where FSDP1's held whole tensors",
        "whole_state_dicts",
    ),
    Assumption(
        "class_names",
        Severity.SILENT,
        "no code compares class names, or saves them (transformers does, for `output_hidden_states`, and in `config.json` "
        "before release 4.57)",
        "`fully_shard` renames the class `Block` to `FSDPBlock`",
        "class_names",
    ),
    Assumption(
        "list_inputs",
        Severity.SILENT,
        "no unit fills a list or dictionary that is passed to it (`states.append(x)`)",
        "FSDP2 passes a copy, so the caller's object does not change",
        "list_inputs",
    ),
    Assumption(
        "reentrant",
        Severity.SILENT,
        "each unit inside a reentrant activation checkpoint runs once before a backward pass (`use_reentrant=True`, "
        "`CheckpointImpl.REENTRANT`, and what transformers 4 uses unless told otherwise)",
        "FSDP2 loses gradients of a unit that runs twice. Use `use_reentrant=False` or `CheckpointImpl.NO_REENTRANT`, or "
        "`--form auto`",
        "",
    ),
    Assumption(
        "autocast_cache",
        Severity.SILENT,
        "one forward pass per `torch.autocast` block",
        "autocast caches the cast weights, and a second forward would reuse them",
        "autocast_cache",
    ),
    Assumption(
        "sharded_after_forward",
        Severity.SILENT,
        "no code reads or changes parameters, or creates an optimizer, between an evaluation (a forward under `no_grad`) and "
        "the next training step",
        "the model's outermost unit keeps gathered copies of its parameters until then, and changes to those are lost",
        "sharded_after_forward",
    ),
    Assumption(
        "whole_in_apply",
        Severity.SILENT,
        "functions passed to `model.apply` do not read parameters",
        "they now see shards, where FSDP1 gathered whole parameters for them",
        "whole_in_apply",
    ),
    Assumption(
        "not_reduced",
        Severity.SILENT,
        "each accumulation under `no_sync` ends in a step, and no code reads gradients before that",
        "FSDP2 keeps gradients that are not reduced where `zero_grad()` does not clear them and `p.grad` does not show them. "
        "Set `set_requires_gradient_sync(True)` for the last batch, or use `--form auto`",
        "",
    ),
    Assumption(
        "summed_dtype",
        Severity.SILENT,
        "gradients that accumulate under `no_sync` may add up in `reduce_dtype`",
        "FSDP1 added them up in `param_dtype`, so the sums are rounded elsewhere; `--form auto` does as FSDP1 did. With a "
        "`reduce_dtype` in low precision and parameters in float32, sums become less exact: set it to float32",
        "",
    ),
    Assumption(
        "root_inputs",
        Severity.SILENT,
        "units in low precision run only inside `forward` of the model",
        "FSDP1 also cast the inputs of a unit that another method runs (`model.encode(x)`); FSDP2 does not, so its numbers "
        "change or it raises a dtype error",
        "root_inputs",
    ),
    Assumption(
        "interface",
        Severity.RAISES,
        "no other code uses FSDP1's methods and attributes of the model (`model.module`, `model.rank`)",
        "a model sharded by `fully_shard` does not have them",
        "interface",
    ),
    Assumption(
        "inputs_in_place",
        Severity.RAISES,
        "no unit changes its input in place (`x += y`, or `nn.ReLU(inplace=True)` as its first layer)",
        "FSDP2 passes views that autograd does not let a unit change. Write `x = x + y`, or use `--form auto`",
        "",
    ),
    Assumption(
        "printing",
        Severity.PRINTS,
        "nothing depends on printed names of classes and parameters",
        "FSDP1's wrapper no longer appears in them",
        "class_names",
    ),
)

_STATE_DICTS = "torch.distributed.checkpoint.state_dict"
_GET_AND_SET = f"Use `get_model_state_dict` and `set_model_state_dict` of `{_STATE_DICTS}`."
_GET_OPTIMIZER = f"Use `get_optimizer_state_dict` of `{_STATE_DICTS}`."
_SET_OPTIMIZER = f"Use `set_optimizer_state_dict` of `{_STATE_DICTS}`."
_OWN_VARIABLE = "Keep the value that you pass to `fully_shard` in a variable of your own."
_LEAVE_OUT = "Remove it."
# What a model of FSDP1 has and one of `fully_shard` lacks, with what to write in its place.
INTERFACE = {
    "process_group": "Use `mesh.get_group()` of the mesh passed to `fully_shard`, or `dist.group.WORLD`.",
    "rank": "Use `dist.get_rank()`, with the group of the mesh.",
    "world_size": "Use `dist.get_world_size()`, with the group of the mesh.",
    "compute_device": "Use `next(model.parameters()).device`, unless parameters are offloaded.",
    "cpu_offload": _OWN_VARIABLE,
    "mixed_precision": _OWN_VARIABLE,
    "sharding_strategy": _OWN_VARIABLE,
    "backward_prefetch": _LEAVE_OUT,
    "check_is_root": _LEAVE_OUT,
    "forward_prefetch": _LEAVE_OUT,
    "limit_all_gathers": _LEAVE_OUT,
    "training_state": _LEAVE_OUT,
    "fsdp_modules": "Use `[m for m in model.modules() if isinstance(m, FSDPModule)]`.",
    "summon_full_params": "Read whole parameters with `p.full_tensor()`, on all ranks.",
    "state_dict_type": _GET_AND_SET,
    "set_state_dict_type": _GET_AND_SET,
    "get_state_dict_type": _GET_AND_SET,
    "optim_state_dict": _GET_OPTIMIZER,
    "optim_state_dict_to_load": _SET_OPTIMIZER,
    "full_optim_state_dict": _GET_OPTIMIZER,
    "sharded_optim_state_dict": _GET_OPTIMIZER,
    "shard_full_optim_state_dict": _SET_OPTIMIZER,
    "scatter_full_optim_state_dict": _SET_OPTIMIZER,
    "flatten_sharded_optim_state_dict": _SET_OPTIMIZER,
    "rekey_optim_state_dict": "Remove it: these functions always use parameter names as keys.",
}
# Those of its methods that other rules find, and that a string can ask for.
METHODS = {
    "clip_grad_norm_": "Use `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`.",
    "no_sync": "Use `model.set_requires_gradient_sync(False)` while accumulating gradients, and `True` for the last batch.",
}
# Methods that both have, and that do something else.
STATE_DICTS = {
    "state_dict": (
        "Returns this rank's shards, in the memory of the parameters; FSDP1 returned whole copies. "
        f"Use `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))` of `{_STATE_DICTS}`."
    ),
    "load_state_dict": (
        "Accepts only shards, and raises for whole tensors. "
        f"Use `set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))` of `{_STATE_DICTS}`."
    ),
}
