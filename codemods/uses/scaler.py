"""`ShardedGradScaler`: a GradScaler whose ranks skip a step together, which `torch.amp.GradScaler` does for DTensors."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.ignored import may_ignore
from fsdp_migrate.codemods.context import Context, has_torch
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.facts.file import File, last_name, words_in
from fsdp_migrate.facts.nodes import all_are, any_below, has_any
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP351", "sharded-grad-scaler")

_NAME = "ShardedGradScaler"
_PACKAGE = "fsdp_migrate"
_PLAIN = "Replaced by `torch.amp.GradScaler`, which also skips a step on all ranks together."
_ALONE = (
    "This scaler now skips a step on all ranks together, as it should. Under FSDP1 each rank checked only its own shards "
    "for infinities, so the ranks could differ: more steps may be skipped than before."
)
_MIXED = "it raises if one optimizer holds both sharded parameters and {} (give those an optimizer of their own)"
_SAME = {"device", "init_scale", "backoff_factor", "growth_factor", "growth_interval", "enabled"}
_OPTIMIZER = re.compile(r"[Oo]ptim|Ada[dgm]|SGD|Lion|RMSprop")
_HALF_WORDS = (".half(", "torch.float16", "torch.half")  # found sooner than the pattern
_HALF = re.compile(
    r"\.half\(|((\.to|from_pretrained|set_default_dtype)\(|\btorch_dtype\s*=)[^)]{0,500}?torch\.(float16|half)\b"
)


@codemod(words=("GradScaler",))
def find(context: Context) -> Iterator[Found]:
    """The uses of `ShardedGradScaler`, and the calls of torch's where a program has no other."""
    references = [node for node, name in context.references.items() if name == _NAME]
    calls: dict[ast.expr, ast.Call] = {}
    for node in references:
        parent = context.file.parents[node]
        if isinstance(parent, ast.Call) and parent.func is node:
            calls[node] = parent
    assigned = [each for each in references if _is_assigned(context, each)]
    for reference in references:
        call = calls.get(reference)
        if context.form == "torch":
            found = _by_torch(context, reference, call)
            if reference not in assigned:
                yield found._replace(removed=(*found.removed, *assigned))
            elif found.action is Action.MANUAL:
                yield found._replace(edits=None, imports=(), removed=())
            continue
        reason = "the class is also used without calling it"
        if len(calls) == len(references) and call is not None:
            reason, _ = _reason(context, call)
        if call is None or reason or not context.in_place:
            message = "This name now comes from `fsdp_migrate.runtime`."
            if reason:
                message = f"{message} `torch.amp.GradScaler` cannot take its place: {reason}."
            yield Found(RULE, reference, Action.RUNTIME, message, _NAME)
        else:
            yield _plain(context, reference, _PLAIN, Action.REWRITE)
    yield from _without_other(context)


def _is_assigned(context: Context, reference: ast.expr) -> bool:
    """Whether a name is a variable that code assigns the class to: that assignment changes, not what reads it."""
    bindings = context.file.bindings(reference)
    return bool(bindings) and all_are(bindings, Assigned)


def _without_other(context: Context) -> Iterator[Found]:
    """Calls of torch's class where a program has no other. What this tool has moved has torch's in the place of the other."""
    is_own = context.program.once(_names_own)
    is_alone = not is_own and context.models.shards(context.file)
    if not is_alone:
        return
    for scaler in context.file.calls.get("GradScaler", ()):
        of_torch = any_below(context.dotted(scaler.func), "torch.")
        if of_torch and not is_for_others(context.file, scaler):
            yield Found(RULE, scaler, Action.MANUAL, _ALONE)


def _names_own(program: Program) -> bool:
    """Whether code of the run names FSDP1's class, or the runtime."""
    files = [each for each in program.files if _NAME in each.text or _PACKAGE in each.text]
    words = [word for file in files for word in words_in(file.tree)]
    return any(word == _NAME or word.split(".")[0] == _PACKAGE for word in words)


def _by_torch(context: Context, reference: ast.expr, call: ast.Call | None) -> Found:
    """Torch's class, whatever is done with the name; what differs then is for a person to look at."""
    reason = ""
    severity = Severity.SILENT
    if call is not None:
        reason, severity = _reason(context, call)
    if call is not None and not _may_take(context, call):
        message = f"FSDP2 has no such class. Use `torch.amp.GradScaler`, but note: {reason}."
        return Found(RULE, reference, Action.MANUAL, message, _NAME, severity=severity)
    if reason:
        message = f"Replaced by `torch.amp.GradScaler`, but check this: {reason}."
        return _plain(context, reference, message, Action.MANUAL)._replace(severity=severity)
    return _plain(context, reference, _PLAIN, Action.REWRITE)


def _plain(context: Context, reference: ast.expr, message: str, action: Action) -> Found:
    spelled = has_torch(context, reference)
    name = "GradScaler"
    imports: tuple[Import, ...] = (Import("torch.amp", "GradScaler", reference),)
    if spelled:
        name = "torch.amp.GradScaler"
        imports = ()
    return Found(
        RULE,
        reference,
        action,
        message,
        _NAME,
        edits=lambda: [context.replace(reference, name)],
        imports=imports,
        removed=(reference,),
    )


def _may_take(context: Context, call: ast.Call) -> bool:
    """Whether torch's class takes the arguments of a call, and can be named there."""
    given = {keyword.arg for keyword in call.keywords}
    is_named = has_torch(context, call) or context.means("GradScaler", call, "torch.amp.GradScaler")
    return is_named and "process_group" not in given and len(call.args) < 2


def _reason(context: Context, call: ast.Call) -> tuple[str, Severity]:
    """Why torch's class may do something else, and what happens then; "" if it does the same."""
    given = [keyword.arg for keyword in call.keywords]
    if call.args:
        return "its arguments have another order, so pass them by name", Severity.SILENT
    if "process_group" in given:
        return "`process_group` may contain more ranks than share one model", Severity.SILENT
    if not _SAME.issuperset(given):
        return (
            "it raises if it is given `process_group`, and the arguments are only known at run time",
            Severity.RAISES,
        )
    texts = [file.text for file in context.program.files]
    if context.program.once(may_ignore):
        return _MIXED.format("ignored ones"), Severity.RAISES
    if any(map(_is_in_half, texts)):
        return (
            "it raises for gradients in float16 (keep the parameters in float32)",
            Severity.RAISES,
        )
    if any(_optimizes_others(context, file) for file in context.program.files):
        return _MIXED.format("others"), Severity.RAISES
    spelled = has_torch(context, call)
    if not spelled and not context.means("GradScaler", call, "torch.amp.GradScaler"):
        return "the name `GradScaler` means something else in this file", Severity.SILENT
    return "", Severity.SILENT


def _optimizes_others(context: Context, file: File) -> bool:
    """Whether a file gives an optimizer the parameters of a module that may be no sharded model."""
    models = context.models
    # Sharded in place, whatever name the program has for the result.
    sharded = {ast.unparse(call.args[0]) for call in models.constructors(file) if call.args}
    for attribute in file.attributes.get("parameters", ()):
        model = attribute.value
        if models.can_hold(model, file) or ast.unparse(model) in sharded:
            continue
        for around in file.ancestors(attribute):
            if isinstance(around, ast.Call) and _OPTIMIZER.search(last_name(around.func)):
                return True
    return False


def _is_in_half(text: str) -> bool:
    """Whether a file speaks of float16; words are found faster than the pattern."""
    return has_any(text, _HALF_WORDS) and _HALF.search(text) is not None
