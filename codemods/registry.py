"""All rules, and which of their modules have something to say about a file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from fsdp_migrate.findings import Action

if TYPE_CHECKING:
    from fsdp_migrate.codemods.context import Context
    from fsdp_migrate.codemods.rule import Found, Rule

_OF_PARAMETERS = (
    *("param", "optim", "group", "decay", "norm", "Norm", "grad", "Grad", "clip", "Clip"),
    *("numel", "nelement", "dim", "numpy", "storage", "tolist", "data_ptr", "reduce"),
    *("[", "allclose", "nonzero", "unique", "masked_select", "argwhere"),
    *(
        f"{word}("
        for word in ("any", "all", "max", "min", "mean", "std", "sum", "var", "cat", "stack")
    ),
)
# Each module looks at one file and yields what it finds. It is asked, and imported, only where one of its words is in the file
# or among the FSDP1 names that the file refers to; without words, always. `swap` runs after all, on what they leave.
CODEMODS: dict[str, tuple[str, ...]] = {
    "constructor.form": (),
    "uses.like_fsdp1": ("like_fsdp1",),
    "uses.state_dicts": ("state_dict", "STATE_DICT"),
    "uses.methods": ("clip_grad_norm_", "no_sync", ".apply", "module"),
    "uses.assumed": (),
    "uses.classes": ("isinstance", "prepare", "extract_model", "unwrap_model"),
    "uses.annotations": ("->", ": ", "cast("),
    "uses.summon": ("summon_full_params", "fsdp_modules"),
    "uses.scaler": ("GradScaler",),
    "left.private_names": ("fsdp._", " _", "(_", ",_", "\t_", "FlatParam", "fully_sharded_data_"),
    "left.wrapper_internals": ("._", ".params", "_flat_param", ".flat_param", "shard"),
    "left.dynamic_names": ("patch(", '"torch.', "'torch.", '"fsdp_migrate.', "'fsdp_migrate."),
    "left.module_names": ("__name__",),
    "left.hooks": ("register_", "_apply_optimizer_in_backward"),
    "left.environment": ("FSDP_USE_",),
    "left.review": ("fsdp-migrate: review",),
    "left.dtensors": (
        *("_like(", "normal_", "bernoulli_", "exponential_", "random_", "uniform_"),
        "ShardedTensor",
    ),
    "left.optimizers": ("opt", "Opt"),
    "left.first_values": ("seed",),
    "left.optimizer_files": ("state_dict",),
    "left.clip_local_norm": ("clip_grad_norm_",),
    "left.norms_over_ranks": ("all_reduce", "local_shard"),
    "left.collectives": ("reduce", "broadcast", "gather", "scatter"),
    "left.in_place": (
        *("isinstance", ".module.", "_fsdp_w", "_flat_param", "deepcopy", "convert_sync"),
        *("_parameters", "init"),
    ),
    "left.wrapped": ("state_dict", ".apply(", "isinstance"),
    "left.units_of_the_model": ("class ", "olicy", "mixed_precision", "()"),
    "left.parameters": _OF_PARAMETERS,
    "left.taken_out": (
        *("attrgetter", ".state", "get_parameter", "_parameters"),
        *("arameters(", "odules(", "children(", ".weight", ".bias", "requires_grad_("),
    ),
    "left.taken_before": ("arameters(", ".weight", ".bias"),
    "left.written_in_forward": ("NO_SHARD", "Parameter("),
    "libraries.settings": (
        *("fsdp=", "fsdp =", "fsdp:", "fsdp_config", '"fsdp', "'fsdp", "Plugin"),
        *("ACCELERATE_USE_FSDP", "fsdp_plugin", "strategy", "--fsdp"),
    ),
    "libraries.commands": ("--fsdp", "--use_fsdp", "--use-fsdp"),
    "libraries.lightning": ("lightning",),
    "libraries.composer": ("composer", "parallelism_config"),
    "libraries.prepared": ("_", ".module", "prepare", "isinstance", *_OF_PARAMETERS),
}


class Codemod(Protocol):
    """A module with rules and what finds their constructs."""

    RULES: tuple[Rule, ...]

    def find(self, context: Context) -> Iterator[Found]:
        """What it has to say about a file."""


def asked(context: Context, takes: Callable[[str], bool] | None = None) -> Iterator[Codemod]:
    """The modules that may find something in a file, of those whose names are taken."""
    text, names = context.file.text, set(context.references.values())
    for name, words in CODEMODS.items():
        if name == "uses.assumed" and context.form != "torch":
            continue
        if (takes is None or takes(name)) and (
            not words or not names.isdisjoint(words) or any(word in text for word in words)
        ):
            yield module(name)


def find(context: Context, takes: Callable[[str], bool] | None = None) -> Iterator[Found]:
    """What they find there; of a statement that a special rule leaves to the user, the general one says nothing."""
    said: set[ast.stmt] = set()
    for codemod in asked(context, takes):
        for found in codemod.find(context):
            at = context.file.statement(found.node) if found.action is Action.MANUAL else None
            if at is not None and found.rule.code == "FSDP529" and at in said:
                continue
            said |= {at} if at is not None else set()
            yield found


@cache
def module(name: str) -> Codemod:
    """A module of rules, imported when it is first asked for."""
    found: Codemod = import_module(f"{__package__}.{name}")
    return found


@cache
def all_rules() -> list[Rule]:
    """Every rule, in the order of codes."""
    modules = (module(name) for name in (*CODEMODS, "requirements", "silenced", "swap"))
    return sorted((rule for each in modules for rule in each.RULES), key=lambda rule: rule.code)


def rule_for(code: str) -> Rule | None:
    """The rule with a code, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)


def rule_named(name: str) -> Rule | None:
    """The rule with a name, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.name == name.lower()), None)


def unknown(code: str) -> str:
    """The message for a code, or a name, that no rule has."""
    from difflib import get_close_matches

    close = get_close_matches(code.upper(), [rule.code for rule in all_rules()], 3)
    close = close or get_close_matches(code.lower(), [rule.name for rule in all_rules()], 3)
    hint = f"; close ones: {', '.join(close)}" if close else ""
    return f"no rule has the code {code}{hint} (`fsdp-migrate rules` lists all)"
