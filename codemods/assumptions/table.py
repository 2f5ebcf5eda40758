"""What the torch form assumes of every program, and what FSDP1's interface is replaced by, as rows.

The tables on the page of FSDP003 show the same rows; a test compares them.
"""

from typing import NamedTuple

from fsdp_migrate.findings import IN_AUTO, Severity

# What sets an attribute of a parameter: `p.no_weight_decay = True`, `setattr(p, name, value)`; `params` are settings.
_PARAMETER = r"p|w|param(?!s\b|eters\b)\w*"
SETTING = (
    rf"\bsetattr\((?:{_PARAMETER}),"
    rf"|\b(?:{_PARAMETER}|weight|bias)\.(?!data\b|grad\b|requires_grad\b)\w+ = "
)
# Which units keep whole parameters after a forward without gradients, where the root is not told to free its own.
OUTERMOST = "The model's outermost unit keeps gathered copies of its"


class Assumption(NamedTuple):
    """One thing that must hold for a program to train as before without `like_fsdp1`.

    Attributes:
        name: what `WORDS` of `lines.py` knows it by.
        severity: how the program shows that it does not hold.
        condition: what must hold.
        consequence: what FSDP1 did and FSDP2 does where it does not hold, in sentences.
        switch: the switch of `like_fsdp1` that keeps FSDP1's behaviour; empty if there is none.
        remedy: what to do where it does not hold, in a sentence; empty if the switch is what there is to do.
    """

    name: str
    severity: Severity
    condition: str
    consequence: str
    switch: str
    remedy: str = ""

    def message(self, check: str = "") -> str:
        """What the finding says.

        Args:
            check: which places to check, as a sentence; empty if the program has none.
        """
        remedy = self.remedy
        if self.switch:
            remedy = IN_AUTO
        sentences = (f"Assumes {self.condition}.", f"{self.consequence}.", check, remedy)
        return " ".join(sentence for sentence in sentences if sentence)


# In the order in which a constructor's findings name them.
ASSUMPTIONS = (
    Assumption(
        "zero_gradients",
        Severity.SILENT,
        "every forward pass uses every trained parameter",
        "FSDP1 gave unused parameters a gradient of zeros, so weight decay and momentum still changed them; FSDP2 leaves "
        "them unchanged, and raises or hangs if a parameter is used on some ranks only",
        "zero_gradients",
    ),
    Assumption(
        "batch_norm",
        Severity.SILENT,
        "no unit in low precision contains a BatchNorm",
        "FSDP1 with an `auto_wrap_policy` kept BatchNorm in float32; FSDP2 runs it in the unit's low precision",
        "",
        "If a unit has one, shard the BatchNorm by itself with `MixedPrecisionPolicy()`, or use `--form auto`.",
    ),
    Assumption(
        "dataclasses",
        Severity.SILENT,
        "no forward returns a dataclass",
        "Before torch 2.12, FSDP2 does not reduce gradients that come through tensors in a dataclass",
        "",
        "If one does, return a tuple or a dictionary instead.",
    ),
    Assumption(
        "older_optimizers",
        Severity.SILENT,
        "the optimizer is created after this line",
        "An optimizer created earlier would train nothing, because sharding replaces the parameters",
        "older_optimizers",
    ),
    Assumption(
        "parameter_attributes",
        Severity.SILENT,
        "no code sets attributes on parameters before this line (`p.no_weight_decay = True`)",
        "Sharding replaces the parameters, and their attributes are lost",
        "parameter_attributes",
    ),
    Assumption(
        "data_writes",
        Severity.SILENT,
        "no code assigns `p.data = x` to a parameter",
        "FSDP2 continues with the old memory and ignores `x`",
        "data_writes",
    ),
    Assumption(
        "whole_state_dicts",
        Severity.SILENT,
        "`model.state_dict()` is saved only with `torch.distributed.checkpoint`",
        "It now returns only this rank's shards; FSDP1's returned whole tensors",
        "whole_state_dicts",
    ),
    Assumption(
        "class_names",
        Severity.SILENT,
        "no code compares or saves the class names of modules",
        (
            "`fully_shard` renames the class of each sharded module: `Block` is then called `FSDPBlock`. For example, "
            "transformers compares class names for `output_hidden_states`, and before release 4.57 it saves the model's "
            "class name in `config.json`"
        ),
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
        "each unit inside a reentrant activation checkpoint runs only once before a backward pass (reentrant are "
        "`use_reentrant=True`, `CheckpointImpl.REENTRANT` and the default of transformers 4)",
        "FSDP2 loses gradients of a unit that runs twice",
        "",
        "If this does not hold, write `use_reentrant=False` or `CheckpointImpl.NO_REENTRANT`, or use `--form auto`.",
    ),
    Assumption(
        "autocast_cache",
        Severity.SILENT,
        "one forward pass per `torch.autocast` block",
        "Autocast caches the cast weights, and a second forward in the block would reuse the old ones",
        "autocast_cache",
    ),
    Assumption(
        "sharded_after_forward",
        Severity.SILENT,
        "no code reads or changes parameters, or creates an optimizer, between an evaluation (a forward under `no_grad`) and "
        "the next training step",
        f"{OUTERMOST} parameters until then, and changes to these are lost",
        "sharded_after_forward",
    ),
    Assumption(
        "whole_in_apply",
        Severity.SILENT,
        "functions passed to `model.apply` do not read parameters",
        "They now see shards; FSDP1 gathered whole parameters for them",
        "whole_in_apply",
    ),
    Assumption(
        "not_reduced",
        Severity.SILENT,
        "each accumulation under `no_sync` ends in a step, and no code reads gradients before that",
        "FSDP2 keeps unreduced gradients outside of `p.grad`, where `zero_grad()` does not clear them",
        "",
        "If this does not hold, call `set_requires_gradient_sync(True)` before the last batch, or use `--form auto`.",
    ),
    Assumption(
        "summed_dtype",
        Severity.SILENT,
        "it does not matter that gradients under `no_sync` add up in `reduce_dtype`",
        "FSDP1 added them up in `param_dtype`, so the results are rounded differently",
        "",
        "If `reduce_dtype` is the lower precision, sums become less exact: set it to float32, or use `--form auto`.",
    ),
    Assumption(
        "root_inputs",
        Severity.SILENT,
        "units in low precision run only inside the model's `forward`",
        "FSDP1 also cast the inputs of a unit that another method runs (`model.encode(x)`); FSDP2 does not, so its "
        "results change or it raises a dtype error",
        "root_inputs",
    ),
    Assumption(
        "interface",
        Severity.RAISES,
        "no other code uses FSDP1's methods and attributes of the model (`model.module`, `model.rank`)",
        "A model sharded by `fully_shard` does not have them",
        "interface",
    ),
    Assumption(
        "inputs_in_place",
        Severity.RAISES,
        "no unit changes its input in place (`x += y`, or `nn.ReLU(inplace=True)` as its first layer)",
        "FSDP2 passes views to it, and autograd raises if they are changed in place",
        "",
        "If one does, write `x = x + y`, or use `--form auto`.",
    ),
    Assumption(
        "printing",
        Severity.PRINTS,
        "nothing depends on the names of classes and parameters that are printed or logged",
        "FSDP1's wrapper no longer appears in them",
        "class_names",
    ),
)

_STATE_DICTS = "torch.distributed.checkpoint.state_dict"
_GET_AND_SET = f"Use `get_model_state_dict` and `set_model_state_dict` of `{_STATE_DICTS}`."
_GET_OPTIMIZER = f"Use `get_optimizer_state_dict` of `{_STATE_DICTS}`."
_SET_OPTIMIZER = f"Use `set_optimizer_state_dict` of `{_STATE_DICTS}`."
_OWN_VARIABLE = "Keep in a variable of your own what you pass to `fully_shard`, and read that."
_LEAVE_OUT = "Remove this."
# What a model of FSDP1 has and one of `fully_shard` lacks, with what to write in its place.
INTERFACE = {
    "process_group": "Use `mesh.get_group()` of the mesh passed to `fully_shard`, or `dist.group.WORLD`.",
    "rank": "Use `dist.get_rank(group)` with the group of the mesh, or `dist.get_rank()`.",
    "world_size": "Use `dist.get_world_size(group)` with the group of the mesh, or `dist.get_world_size()`.",
    "compute_device": "Use `next(model.parameters()).device`. If parameters are offloaded, use the device that you set.",
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
    "rekey_optim_state_dict": (
        "Remove this call: torch's functions for optimizer states always use parameter names as keys."
    ),
}
# Those of its methods that other rules find, and that a string can ask for.
METHODS = {
    "clip_grad_norm_": "Use `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`.",
    "no_sync": "Use `model.set_requires_gradient_sync(False)` while accumulating gradients, and `True` for the last batch.",
}
# Methods that both have, and that do something else.
STATE_DICTS = {
    "state_dict": (
        "This returns only this rank's shards, which later steps change; FSDP1 returned copies of whole tensors. "
        "For whole tensors, use `get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))` of "
        f"`{_STATE_DICTS}`."
    ),
    "load_state_dict": (
        "This accepts only shards, and raises for whole tensors. To load whole tensors, use `set_model_state_dict(model, "
        f"state, options=StateDictOptions(full_state_dict=True))` of `{_STATE_DICTS}`."
    ),
}
