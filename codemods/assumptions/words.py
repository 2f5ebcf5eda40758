"""By which words of a program an assumption of the torch form matters, as regular expressions."""

from fsdp_migrate.codemods.assumptions.table import INTERFACE, METHODS, SETTING

# What `methods` and `hooks` have findings for, unless it is asked for by a string.
REPLACED = ("_fsdp_wrapped_module", "module", "no_sync", "register_comm_hook")
ASKED = {**INTERFACE, **METHODS}
# An assumption without words is one of every program. Of the interface: `model.rank`, `hasattr(model, "rank")` and
# `getattr(model, name)`.
WORDS = {
    "interface": rf"(?<!\bself)\.(?:{'|'.join((*INTERFACE, *REPLACED))})\b(?! import)"
    rf"|\b(?:get|has)attr\((?!self,)(?![^()\n]*,\s*[\"'](?!(?:{'|'.join(ASKED)})[\"']))",
    "parameter_attributes": SETTING,
    "data_writes": r"(?<!\bself)\.data\s*=[^=]",
    "whole_state_dicts": r"\.(?:load_)?state_dict\(",
    "class_names": r"\.__name__\b|\b(?:import|from) transformers\b|\.save_pretrained\(",
    "list_inputs": r"def forward\([^)]*?\b(\w+)\b[^)]*\)[^\0]{0,2000}?\n +\1"
    r"(?:\.(?:append|extend|update)\(|\[[^\]\n:,]*\] = )",
    "reentrant": r"CheckpointImpl\.REENTRANT\b|use_reentrant\W{1,5}True\b"
    r"|\.gradient_checkpointing_enable\((?![^\0]{0,200}use_reentrant)",
    # Of an argument, up to the first statement that binds its name to something else.
    "inputs_in_place": r"\bSequential\(\s*(?:\w+\.)*\w+\([^()]*\binplace\s*=\s*True"
    r"|def forward\([^)]*?\b(\w+)\b[^)]*\)(?:(?!\n\s+(?:def |\1\b[^=\n]*=[^=]))[^\0]){0,2000}?"
    r"(?:\n +\1(?: [-+*/]= |\.(?:add|mul|sub|div)_\()|(?:\n +\1 = )?[\w.]+\(\1, [^()\n]*inplace\s*=\s*True)",
    "autocast_cache": r"autocast",
    "sharded_after_forward": r"no_grad|inference_mode|\.eval\(\)",
    "not_reduced": r"\.no_sync\b",
    "summed_dtype": r"\.no_sync\b",
    "whole_in_apply": r"(?<!\w)[a-z_]\w*\.apply\(",
    # A field up to the first method.
    "dataclasses": r"@(?:\w+\.)?dataclass\b.*\n(?:\s*@.*\n)*\s*class .*\n"
    r"(?:(?!\s*(?:def |class |@)).*\n)*?(?!\s*(?:def |class |@)).*Tensor\b",
    # A model's layers come from these libraries, too.
    "batch_norm": r"BatchNorm|[\"']BN[\"']|\b(?:import|from) (?:timm|torchaudio)\b"
    r"|\b(?:import|from) torchvision\b.*\bmodels\b",
}
# What shows that one of every program may not hold.
HINTS = {"zero_gradients": r"find_unused_parameters\W{1,5}True\b"}
