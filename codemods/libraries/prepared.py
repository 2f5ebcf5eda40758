"""Models that Accelerate shards: what code does with them, where the settings beside it become version 2.

The rules for a model that the program shards itself look at them too. Of the rest, Accelerate 1.15 itself says what holds
(`Accelerator.prepare`, `prepare_model`); its model is a plain one of `fully_shard`, on which nothing answers for FSDP1.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.libraries.rules import MODEL
from fsdp_migrate.codemods.libraries.settings import is_accelerates
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses.classes import find as of_classes
from fsdp_migrate.codemods.uses.classes import is_tested
from fsdp_migrate.codemods.uses.training import CLIP, NO_SYNC
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import Models, is_module
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.facts.scopes import Assigned, Parameter
from fsdp_migrate.facts.values import element, reaching
from fsdp_migrate.findings import Action

RULES: tuple[Rule, ...] = ()  # listed with those of settings

_PYTHON = (
    r"FullyShardedDataParallelPlugin\(|ACCELERATE_USE_FSDP|"
    r"\bfsdp[\"']?\s*[=:]\s*\[?[\"'](?:full|shard|hybrid|auto|offload)"
)
_FROZEN = "of one without an optimizer, prepare_model(m, evaluation_mode=True) keeps it whole, fully_shard shards it"
_TOGETHER = (
    f"raises under FSDP2: a model and its optimizer go through one call of prepare(); {_FROZEN}"
)
_ONE = f"raises under FSDP2: one call of prepare() takes one model, with its optimizer; {_FROZEN}"
_STATES = (
    "gives DTensors, where FSDP1 gave whole tensors: accelerator.get_state_dict(model) still does"
)
_TEST = "is False for a model that Accelerate shards by FSDP2: test for FSDPModule, too"
_GONE = "raises AttributeError on a model that Accelerate shards by FSDP2: {}"
# What FSDP1's class has and `FSDPModule` has not.
_MISSING: dict[str, tuple[Rule, str]] = {
    "clip_grad_norm_": (CLIP, "accelerator.clip_grad_norm_(model.parameters(), limit)"),
    "no_sync": (NO_SYNC, "accelerator.no_sync(model)"),
    "module": (MODEL, "accelerator.unwrap_model(model)"),
    "sharding_strategy": (MODEL, "accelerator.state.fsdp_plugin says how it shards"),
} | dict.fromkeys(
    ("check_is_root", "compute_device", "limit_all_gathers", "process_group", "training_state"),
    (MODEL, "FSDP2 has no such attribute"),
)
# Methods of an accelerator that are given a model which it has prepared.
_TAKING = ("accumulate", "clip_grad_norm_", "get_state_dict", "no_sync", "unwrap_model")
_TRAINING = ("compute_loss", "training_step", "prediction_step")
# An argument of `prepare` by its name, where the program does not show what it is.
_OPTIMIZER = re.compile(r"optim|(^|_)opt($|_|s$)")
_OTHER = re.compile(r"sched|loader|data|iter|token|process|sampler|collat|batch|samples|state")
_NOT = re.compile(r"\bnot |!=")
_WRAPPERS = re.compile(r"apex|ddp|deepspeed|hasattr|multi_gpu|parallel\b")
_SECOND = re.compile(r"fsdp_?2|fsdp_version|fsdpmodule")
_MODEL = re.compile(
    r"(^|_)ref|model|policy|critic|actor|net($|_)|unet|vae|coder|module|former|head|generator|discriminator"
)


def find(context: Context) -> Iterator[Found]:
    """What Accelerate refuses, what its models do not answer, and what the other rules say of them."""
    if not _is_concerned(context):
        return
    sharded = _Sharded(context)
    yield from _prepared(sharded)
    yield from _asked(sharded)
    yield from _tested(sharded)
    from fsdp_migrate.codemods.registry import asked  # which asks this module

    for codemod in asked(sharded, but=_BY_NAME):
        if ".left." in codemod.__name__:
            found = codemod.find(sharded)
            yield from (each for each in found if not _is_for_others(context.file, each.node))


def _is_concerned(context: Context) -> bool:
    """Whether Accelerate shards what a file trains: not for a test that sets nothing, for inference, in Accelerate itself."""
    program, file, reach = context.program, context.file, reach_of(context.program)
    sets = re.search(_PYTHON, file.text)
    if not (program.is_set or program.has(_PYTHON)) or is_accelerates(context):
        return False
    path = str(file.path)
    trains = "optim" in file.text or "backward(" in file.text
    return bool(sets) or (not reach.is_test(file.shown) and (trains or not reach.is_start(path)))


# These know no models.
_BY_NAME = ("left.dynamic_names", "left.private_names", "left.module_names")


class _Sharded(Context):
    """A file as rules see it that ask for Accelerate's models."""

    def __init__(self, context: Context) -> None:
        super().__init__(
            context.file,
            context.program,
            form=context.form,
            writes=context.writes,
            target=context.target,
        )

    @cached_property
    def models(self) -> Models:
        """The models that Accelerate shards."""
        return _models_of(self.program)


class Prepared(Models):
    """The models that Accelerate shards: results of `prepare`, what its methods are given, and the model of a Trainer."""

    def shards(self, file: File) -> bool:
        """Whether a file belongs to a program that trains such models: of others nothing is asked."""
        return True

    def constructors(self, file: File) -> list[ast.Call]:
        """None: which arguments FSDP1 has here, no call in Python says."""
        return []

    def is_constructor(self, call: ast.Call, file: File) -> bool:
        """Whether a call prepares one model and nothing else."""
        return self._takes(call, file, "prepare_model") or (
            self.is_prepare(call, file) and len(call.args) == 1 and self._is_a_model(call, 0, file)
        )

    def is_prepare(self, call: ast.Call, file: File) -> bool:
        """Whether a call is of an accelerator's `prepare`."""
        return self._takes(call, file, "prepare")

    def kind(self, argument: ast.expr, file: File) -> str:
        """What an argument of `prepare` is: a model, an optimizer, other, or "" if that is not known."""
        values = [argument]
        if isinstance(argument, ast.Name):
            own = [b for b in file.bindings(argument) if isinstance(b, Assigned)]
            made = (element(each) or each.value for each in reaching(file, own, argument))
            values += [value for value in made if isinstance(value, ast.Call)]
        for value in reversed(values):
            if isinstance(value, ast.Call) and (found := self._kind_of_call(value, file)):
                return found
        name = (last_name(argument) or last_name(getattr(argument, "func", None))).lower()
        kinds = {"optimizer": _OPTIMIZER, "other": _OTHER, "model": _MODEL}
        return next((kind for kind, pattern in kinds.items() if pattern.search(name)), "")

    def _kind_of_call(self, call: ast.Call, file: File) -> str:
        name, paths = last_name(call.func), self.program.dotted(call.func, file)
        if any(path.startswith("torch.optim.") for path in paths):
            return "other" if "lr_scheduler" in "".join(paths) else "optimizer"
        if any(path.startswith("torch.nn.") for path in paths):
            return "model"
        made = self.program.definition(call.func, file)
        if (
            made is not None
            and isinstance(made.node, ast.ClassDef)
            and is_module(self.program, made)
        ):
            return "model"
        return "other" if name == "DataLoader" else ""

    def _takes(self, call: ast.Call, file: File, *methods: str) -> bool:
        """Whether a call is of one of an accelerator's methods."""
        function = call.func
        if not isinstance(function, ast.Attribute) or function.attr not in methods:
            return False
        owner = function.value
        if last_name(owner).lower().endswith("accelerator"):
            return True
        found = file.variable(owner)
        return found is not None and any(
            isinstance(each.value, ast.Call) and last_name(each.value.func).endswith("Accelerator")
            for each in found.assigned
        )

    def _is_a_model(self, call: ast.Call, place: int, file: File) -> bool:
        return place < len(call.args) and self.kind(call.args[place], file) == "model"

    def _made_by(self, call: ast.Call, file: File, path: tuple[int, ...] = ()) -> bool:
        if path and self.is_prepare(call, file):
            return self._is_a_model(call, path[0], file)
        return super()._made_by(call, file, path)

    def _named(self, name: ast.Name, file: File) -> bool:
        function = file.function(name)
        given = {
            ast.unparse(each) for each in self._given_to(file) if file.function(each) is function
        }
        is_parameter = any(isinstance(each, Parameter) for each in file.bindings(name))
        if is_parameter and function is not None and name.id == "model":
            if function.name in _TRAINING and self._is_trainer(file.enclosing_class(name), file):
                return True
        return (is_parameter and name.id in given) or super()._named(name, file)

    def _kept(self, attribute: ast.Attribute, file: File) -> bool:
        own = getattr(attribute.value, "id", "") == "self"
        function = file.function(attribute)
        if own and getattr(function, "name", "") == "__init__":
            return super()._kept(attribute, file)  # maybe not prepared yet
        if attribute.attr in ("model", "model_wrapped"):
            cls = file.enclosing_class(attribute)
            if self._is_trainer(cls, file) if own else self._is_trainers(attribute.value, file):
                return True
        is_given = own and "accelerator" in file.text and attribute.attr in self._attributes
        return is_given or super()._kept(attribute, file)

    def _given_to(self, file: File) -> Iterator[ast.expr]:
        """The models that a file gives to methods of an accelerator which take prepared ones."""
        for name in _TAKING:
            for call in file.calls.get(name, ()):
                if call.args and self._takes(call, file, name):
                    given = call.args[0]
                    if isinstance(given, ast.Call):  # model.parameters()
                        given = getattr(given.func, "value", given)
                    if self.kind(given, file) != "optimizer":
                        yield given

    @cached_property
    def _attributes(self) -> set[str]:
        """The attributes of `self` that are given to an accelerator as prepared models."""
        given = (each for file in self.program.files for each in self._given_to(file))
        return {
            each.attr
            for each in given
            if isinstance(each, ast.Attribute) and getattr(each.value, "id", "") == "self"
        }

    def _is_trainer(self, cls: ast.ClassDef | None, file: File) -> bool:
        """Whether a class extends a Trainer of transformers."""
        above = self.program.classes_above(Definition(file, cls)) if cls else ()
        return any(isinstance(each, External) and _is_of_trainer(each.dotted) for each in above)

    def _is_trainers(self, owner: ast.expr, file: File) -> bool:
        """Whether an expression is a Trainer of transformers, by what makes it, or by its annotation."""
        found = file.variable(owner)
        makers = [each.value for each in found.assigned] if found else []
        classes = [each.func for each in makers if isinstance(each, ast.Call)]
        annotated = (
            b.argument.annotation for b in file.bindings(owner) if isinstance(b, Parameter)
        )
        classes += [each for each in annotated if isinstance(each, ast.expr)]
        for cls in classes:
            if any(map(_is_of_trainer, self.program.dotted(cls, file))):
                return True
            made = self.program.definition(cls, file)
            if made is not None and isinstance(made.node, ast.ClassDef):
                if self._is_trainer(made.node, made.file):
                    return True
        return False


@lru_cache(maxsize=1)  # of this run only
def _models_of(program: Program) -> Prepared:
    return Prepared(program)


def _is_of_trainer(dotted: str) -> bool:
    return dotted.startswith(("transformers.", "trl.")) and dotted.endswith("Trainer")


def _prepared(context: _Sharded) -> Iterator[Found]:
    """Calls of `prepare` and `prepare_model` that raise under FSDP2."""
    models, file = context.models, context.file
    assert isinstance(models, Prepared)
    for call in file.calls.get("prepare", ()):
        if not models.is_prepare(call, file) or _is_for_others(file, call):
            continue
        kinds = [models.kind(each, file) for each in call.args]
        apart = {*kinds} & {"model", "optimizer"}
        message = _ONE if kinds.count("model") > 1 else _TOGETHER
        if kinds.count("model") > 1 or (len(apart) == 1 and "" not in kinds):
            yield Found(MODEL, call, Action.MANUAL, message, f"{context.source(call.func)}(...)")
    for call in file.calls.get("prepare_model", ()):
        whole = keyword(call, "evaluation_mode", 2)
        if models.is_constructor(call, file) and getattr(whole, "value", None) is not True:
            yield Found(MODEL, call, Action.MANUAL, _TOGETHER)


def _asked(context: _Sharded) -> Iterator[Found]:
    """Attributes of FSDP1's class, and state dicts, of such models."""
    file = context.file
    for name, (rule, way) in _MISSING.items():
        for attribute in file.attributes.get(name, ()):
            is_read = isinstance(attribute.ctx, ast.Load) and not _is_for_others(file, attribute)
            if is_read and context.can_be_model(attribute.value):
                yield Found(rule, attribute, Action.MANUAL, _GONE.format(way))
    for call in file.calls.get("state_dict", ()):
        owner = getattr(call.func, "value", None)
        if owner is None or not context.can_be_model(owner) or _is_for_others(file, call):
            continue
        withs = (each for each in file.ancestors(call) if isinstance(each, ast.With))
        items = (context.source(item.context_expr) for each in withs for item in each.items)
        if not any("state_dict_type" in each or "summon_full" in each for each in items):
            yield Found(MODEL, call, Action.MANUAL, _STATES)


def _tested(context: _Sharded) -> Iterator[Found]:
    """Tests for FSDP1's class that stay; the others become tests for `FSDPModule`."""
    rewritten = {found.node for found in of_classes(context)}
    for reference, name in context.references.items():
        if name == CLASS and reference not in rewritten and is_tested(context, reference):
            test = next(n for n in context.file.ancestors(reference) if isinstance(n, ast.Call))
            if context.can_be_model(test.args[0]) and not _is_for_others(context.file, test):
                yield Found(MODEL, test, Action.MANUAL, _TEST)


def _is_for_others(file: File, node: ast.AST) -> bool:
    """Whether a test leaves a place to what Accelerate's FSDP2 does not shard, or a program to FSDP2 itself."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            test = file.source(parent.test).lower().replace("is not none", "")
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            holds = (child in body) is not bool(_NOT.search(test))
            is_of_fsdp, is_wrapper = "fsdp" in test, _WRAPPERS.search(test) is not None
            if is_of_fsdp and (not holds or _SECOND.search(test)):
                return True
            if not is_of_fsdp and holds and is_wrapper:
                return True
            if "isinstance(" in test and not (is_of_fsdp or holds or is_wrapper):
                return True  # such a model keeps its class
        child = parent
    return False
