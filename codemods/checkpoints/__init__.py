"""Checkpoints: the state dicts of models and optimizers, their types, and the files that they are written to.

What a module finds:

    state_dict              model.state_dict() and model.load_state_dict(...)
    state_dict_context      with FSDP.state_dict_type(model, ...)
    set_state_dict_type     FSDP.set_state_dict_type(model, ...)
    optimizer_state         FSDP.optim_state_dict and its relatives; optimizer_examples: programs before and after
    distributed_checkpoint  the former functions of torch.distributed.checkpoint
    rank_guard              state-dict calls that rank 0 alone makes
    saved_files             save_pretrained, and a file a rank

What they stand on:

    state_dict_types        which type is in force at a call; state_dict_regions: where a context that is no `with` is in force
    state_dict_settings     what a type with its configurations means in options of the new functions
    state_dict_bodies       what the body of a context does with the state dict
    state_dict_calls        the calls, and of which model they speak; state_dict_reach: which functions come to one
    local_state_dict        what is said of LOCAL_STATE_DICT wherever it stands
    optimizer_call          one call for an optimizer's states; loaded_result: where its result goes
    rank_zero               what is certainly read on rank 0 alone, and of which processes that is the first
    runtime_function        a method of the class becomes the runtime's function
"""

from fsdp_migrate.codemods.checkpoints import (
    distributed_checkpoint,
    optimizer_state,
    rank_guard,
    saved_files,
    set_state_dict_type,
    state_dict,
    state_dict_context,
)

MODULES = (
    state_dict,
    state_dict_context,
    set_state_dict_type,
    optimizer_state,
    distributed_checkpoint,
    rank_guard,
    saved_files,
)
