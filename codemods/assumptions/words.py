"""By which words of a program an assumption of the torch form matters, as regular expressions."""

import re

from fsdp_migrate.codemods.assumptions.table import INTERFACE, METHODS, SETTING

# What `methods` and `hooks` have findings for, unless it is asked for by a string.
REPLACED = ("_fsdp_wrapped_module", "module", "no_sync", "register_comm_hook")
ASKED = {**INTERFACE, **METHODS}
# An assumption without words is one of every program. Of the interface: `model.rank`, `hasattr(model, "rank")` and
# `getattr(model, name)`.
WORDS = {
    "interface": rf"(?<!\bself)\.(?:{'|'.join((*INTERFACE, *REPLACED))})\b(?! import)"
    rf"|\b(?:get|has)attr\((?!self,|\w*module,\s*\w)(?![^()\n]*,\s*[\"'](?!(?:{'|'.join(ASKED)})[\"']))",
    "parameter_attributes": SETTING,
    "data_writes": r"(?<!\bself)\.data\s*=[^=]",
    "whole_state_dicts": r"\.(?:load_)?state_dict\(",
    # Of an object's class, unless a text shows it; transformers compares those of its models.
    "class_names": r"(?:\btype\([\w.\[\]]+\)|\.__class__)\.__name__\b(?![}!])"
    r"|\btransformers\.(?:\w*Model(?!Out)|(?!Data)\w+For[A-Z]|models\.\w+\.modeling_)"
    r"|\bfrom transformers[\w.]* import (?:\([^)]*?|[^\n(]*?)\b(?!Data)\w*(?:Model(?!Out)|For[A-Z])"
    r"|\.save_pretrained\(",
    "list_inputs": r"def forward\([^)]*?\b(\w+)\b[^)]*\)[^\0]{0,2000}?\n +\1"
    r"(?:\.(?:append|extend|update)\(|\[[^\]\n:,=<>]*\] = )",
    "reentrant": r"CheckpointImpl\.REENTRANT\b|use_reentrant\W{1,5}True\b"
    r"|\.gradient_checkpointing_enable\((?![^\0]{0,200}use_reentrant)",
    # Of an argument, up to the first statement that binds its name to something else.
    "inputs_in_place": r"\bSequential\(\s*(?:\w+\.)*\w+\([^()]*\binplace\s*=\s*True"
    r"|def forward\([^)]*?\b(\w+)\b[^)]*\)(?:(?!\n\s+(?:def |\1\b[^=\n]*=[^=]))[^\0]){0,2000}?"
    r"(?:\n +\1(?: [-+*/]= |\.(?:add|mul|sub|div)_\()|(?:\n +\1 = )?[\w.]+\(\1, [^()\n]*inplace\s*=\s*True)",
    "autocast_cache": r"\bautocast\b",
    "sharded_after_forward": r"\b(?:no_grad|inference_mode)\(|@[\w.]*(?:no_grad|inference_mode)\b|\.eval\(\)",
    "not_reduced": r"\.no_sync\b",
    "summed_dtype": r"\.no_sync\b",
    # Of one function.
    "whole_in_apply": r"(?<!\w)_*[a-z]\w*\.apply\((?![^()]*,\s*[^)\s])",
    # A field up to the first method.
    "dataclasses": r"@(?:\w+\.)?dataclass\b.*\n(?:\s*@.*\n)*\s*class .*\n"
    r"(?:(?!\s*(?:def |class |@)).*\n)*?(?!\s*(?:def |class |@)).*Tensor\b",
    # A model's layers come from these libraries, too.
    "batch_norm": r"BatchNorm|[\"']BN[\"']|\b(?:import|from) (?:timm|torchaudio)\b"
    r"|\b(?:import|from) torchvision\b.*\bmodels\b",
}
# The names before the words of some assumptions: those of a model, which has the attributes, and those that are none.
_MODEL = re.compile(
    r"(?i:(?:model|module|net|network|actor|critic|policy|teacher|student|encoder|decoder|transformer|backbone|unit"
    r"|(?<![a-z])ema|llm|vlm|layer|block|generator|discriminator)s?_?\d*)$|(?:FSDP|_fsdp|^m)$"
)
_NO_STATE = re.compile(
    r"sched|scaler|sampler|loader|dataset|pipeline|time|telemetry|meter|metric|logger|progress|pbar|rng|tokenizer|stats"
)
_NO_DATA = re.compile(r"batch|config|cfg|args|buf|dataset")


def is_of_model(name: str, before: str) -> bool:
    """Whether words of an assumption may be about a model, by the name of what has the attribute."""
    match name:
        case "interface":
            return _MODEL.search(before) is not None
        case "whole_state_dicts":
            return _NO_STATE.search(before) is None
        case "data_writes":
            return _NO_DATA.search(before) is None
        case "class_names":
            return re.search(r"tokenizer|processor|config", before) is None
    return True


# What shows that one of every program may not hold.
HINTS = {"zero_gradients": r"find_unused_parameters\W{1,5}True\b"}
