"""What `--form torch` relies on: FSDP1 did more than `fully_shard` does, and without `like_fsdp1` nothing makes up for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.silent import Hit
from fsdp_migrate.codemods.context import shortened
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

ASSUMPTION = Rule("FSDP003", "assumption")
SILENT = Rule("FSDP005", "silent-dependence")
RULES = (ASSUMPTION, SILENT)

# In the order of their weight, which is also that of the words.
_HOW = {
    "silent": "changes in silence unless",
    "loud": "raises an error unless",
    "printing": "reads otherwise unless",
}
# How it shows where it does not hold, what is assumed, and the word in a file by which it matters; "" for any program.
_ASSUMED = (
    (
        "silent",
        "every forward uses every parameter that is trained: FSDP1 gave unused ones a gradient of zeros, which weight "
        "decay and momentum act on",
        "",
    ),
    (
        "silent",
        "the optimizer is made behind this line: an older one holds parameters that train nothing",
        "",
    ),
    (
        "silent",
        "nothing hangs on parameters as attributes (`p.no_weight_decay = True`): sharding replaces them",
        r"\bsetattr\(p\w*,|\bp(aram)?\.(?!data\b|grad\b|requires_grad\b)\w+ = ",
    ),
    (
        "silent",
        "no parameter is written by `p.data = x`: FSDP2 goes on with the memory that it had",
        r"\.data\s*=[^=]",
    ),
    (
        "silent",
        "its state_dict() is saved by torch.distributed.checkpoint: it holds shards, where FSDP1's held whole tensors",
        r"state_dict\(",
    ),
    (
        "silent",
        "nothing compares names of classes, as transformers does to return hidden states: a unit of Block is of FSDPBlock",
        r"__name__\)? *(==|!=|in\b|not in\b)|\bin .*__name__|\b(?:import|from) transformers\b",
    ),
    (
        "silent",
        "autocast runs one forward a region: it keeps casts of parameters, which FSDP1's did not",
        r"autocast",
    ),
    (
        "silent",
        "nothing reads or changes parameters, or makes an optimizer, between a forward without gradients and the next "
        "training step: the root stays gathered there",
        r"no_grad|inference_mode|\.eval\(\)",
    ),
    ("loud", "nothing asks the model for FSDP1's methods and attributes that FSDP2's has not", ""),
    ("printing", "nothing prints names of classes and parameters, which lack FSDP1's wrapper", ""),
)
_NORMS = ("silent", "no BatchNorm is in a unit of low precision: FSDP1 kept them in float32")

_DATACLASSES = (
    "silent",
    "no forward returns a dataclass: FSDP2 reduces no gradients of its tensors before torch 2.13",
)


def of(
    construction: Construction, written: Collection[str], hits: Sequence[Hit]
) -> Iterator[Found]:
    """The assumptions of one constructor, the silent ones first, and the places that rely on the wrapper.

    Args:
        written: the arguments that are in torch's words.
    """
    context = construction.context
    has = context.program.has
    assumed = [(how, what) for how, what, word in _ASSUMED if not word or has(word)]
    if {"mixed_precision", "auto_wrap_policy"} <= {*written}:
        assumed.insert(1, _NORMS)
    if context.target < (2, 13) and has("@dataclass"):
        assumed.insert(1, _DATACLASSES)
    for how, what in assumed:
        yield Found(
            ASSUMPTION, construction.call, Action.REWRITE, f"{_HOW[how]} {what}", "fully_shard"
        )
    for hit in hits:
        if hit.file is context.file:
            message = f"{hit.what}, which changes in silence without FSDP1's wrapper: {hit.edit}"
            yield Found(
                SILENT, hit.node, Action.MANUAL, message, shortened(context.source(hit.node))
            )
        else:
            message = f"code changes in silence without FSDP1's wrapper: {hit}"
            yield Found(SILENT, construction.call, Action.MANUAL, message, "fully_shard")
