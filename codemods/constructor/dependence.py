"""What would break, or mean something else, if the models of a run lost FSDP1's interface and structure.

A plain model has none of the wrapper's methods, no wrapper around its units (names lose `_fsdp_wrapped_module.`), and a
class of its own for each unit (`FSDPBlock`). The search is by name over every file that can share the model: it cannot
prove, so in doubt something depends.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from fsdp_migrate.codemods.constructor import autocast
from fsdp_migrate.codemods.constructor.before import (
    Before,
    asks_first,
    given_names,
    is_wrapped,
    may_be_unit,
    subject_of,
    was_wrapper,
)
from fsdp_migrate.codemods.constructor.origin import is_looked_at
from fsdp_migrate.codemods.constructor.parameter_names import (
    NAMED,
    is_prefix_taken_off,
    is_safe,
    is_summoned,
)
from fsdp_migrate.codemods.constructor.plain import leaves_of
from fsdp_migrate.codemods.constructor.refused import refused
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name, root_of
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES, is_private
from fsdp_migrate.facts.program import Definition, Meaning
from fsdp_migrate.facts.reach import reach_of
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.facts.values import branches

Dependence = tuple[ast.AST, str]
# A plain form can provide for two: a plain model's own state dicts are of shards, unless the runtime makes them whole.
WHOLE = "may save or load the model by its own state_dict, whose tensors are whole under FSDP1"
# After an evaluation FSDP2's root stays gathered, unless it is told to free its parameters. FSDP1's does, too, but it shows its
# shards, and evaluates by the gathered values again even if the shards have changed since: no plain model does that.
GATHERED = "may give an optimizer parameters, or clear their gradients, while they are gathered after a forward"
_CHANGED = "may read or change parameters after an evaluation, whose gathered values FSDP1 keeps"
_SET = "sets .data of what may be a parameter: FSDP2 goes on with the memory that it had"

# Static functions of the runtime's class that take a plain model as well.
_STATIC = (
    "summon_full_params",
    "state_dict_type",
    "set_state_dict_type",
    "get_state_dict_type",
    *OPTIMIZER_STATES,
)
# Methods and static functions that FSDP1's class has, and nn.Module has not.
_INTERFACE = (
    *_STATIC,
    "no_sync",
    "fsdp_modules",
    "check_is_root",
    "register_comm_hook",
    "_fsdp_wrapped_module",
)
# Attributes that FSDP1 gives a model, and which other objects have as well.
_OWN = (
    "rank",
    "world_size",
    "process_group",
    "compute_device",
    "sharding_strategy",
    "training_state",
    "register_forward_hook",
    "register_forward_pre_hook",  # those of a unit see inputs that FSDP2 has cast, and shards behind its forward
)
# Words by which a byte search finds the files that have to be looked at.
WORDS = re.compile(
    rb"|".join(re.escape(name.encode()) for name in _INTERFACE)
    + rb"|clip_grad_norm_|\.module\b|state_dict|named_|__class__|type\(|deepcopy|\.forward\(|\.apply\("
    + rb"|\.data\b|\.children\(|_modules\b|\.save\(|\.dumps?\(|meta|empty_weights|[gs]etattr|hasattr|__dict__|vars\(|isinstance"
    + rb"|channels_last|inplace|register_forward|\.parameters\(|\.buffers\(|Parameter\(|autocast|zero_grad"
    + rb"|def forward\((?s:.)*?(?: [-+*/]=|\] =|\.(?:append|clear|extend|insert|pop|setdefault|update)\()"
    + rb"|\bin [\w(]*\.[\w.]+\)?:\n\s+\w+\.\w+ = |(?:model|\])\.\w+ = |(?:model|net)\.[\w.]+\.(?:weight|bias)\b"
)
_NO_MODEL = re.compile(
    r"optim|opt$|sched|scaler|loader|sampler|metric|callback|tokenizer|dataset|iterator|meter|ampl?$"
    r"|conf(ig)?s?$|cfg$|args$|options$|settings$|batch$|error$|exception$|^(e|err|exc)$"
)
_MODEL = re.compile(
    r"model|net$|module|fsdp|ema|actor|critic|encoder|decoder|teacher|student|backbone|unet|transformer"
)
_UNIT = re.compile(r"bl(oc)?k|cell|layer|stage")
_TAKES_SHARDED = re.compile(r"clip_grad|[Oo]ptim|Adam|SGD|Lion|RMSprop|Adagrad|Muon")
_ON_META = {"init_empty_weights", "init_on_device", "deferred_init", "skip_init", "no_init_weights"}


def dependences(
    context: Context, handled: Collection[ast.AST], before: Before, *, has_memory: bool = False
) -> Iterator[Dependence]:
    """The places of a file that depend on FSDP1's interface or structure, with what they do.

    Args:
        handled: nodes that a rewrite takes care of.
        before: what runs before the models of the file are wrapped.
        has_memory: whether a run has seen which models were on the meta device: those get their memory before they are sharded.
    """
    search = _Search(context, frozenset(handled), before)
    yield from search.references()
    yield from search.interface()
    yield from search.clipping()
    yield from search.inner_modules()
    yield from search.states()
    yield from search.strings()
    yield from search.on_meta() if not has_memory else ()
    yield from search.names()
    yield from search.classes()
    yield from search.calls_of_model()
    yield from search.changes()
    yield from search.parameters()


class _Search:
    def __init__(self, context: Context, handled: frozenset[ast.AST], before: Before) -> None:
        self.context = context
        self.file = context.file
        self.handled = handled
        self.before = before

    def attributes(self, *names: str) -> Iterator[ast.Attribute]:
        """The attributes of some names that no rewrite takes care of, and that run after the wrapping."""
        for name in names:
            for node in self.file.attributes.get(name, ()):
                if node not in self.handled and not self.is_bare(node):
                    yield node

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """The calls of functions and methods of some names."""
        for call in self.file.of(ast.Call):
            if last_name(call.func) in names and not self.is_bare(call):
                yield call

    def is_bare(self, node: ast.AST) -> bool:
        """Whether the model that a node is about has no wrapper there: it is wrapped later, or a test rules it out."""
        subject = subject_of(node)
        if self.before.covers(node) or subject is None:
            return self.before.covers(node)
        return is_wrapped(self.context, subject) is False and not self.before.nested()

    def may_be_model(self, expression: ast.expr, file: File | None = None) -> bool:
        """Whether an expression can be a model, by what it holds or by its name."""
        named = _MODEL.search(last_name(expression).lower()) is not None
        holds = self.context.models.can_hold(expression, file or self.file)
        return named or holds or self.context.can_be_model(expression)

    def references(self) -> Iterator[Dependence]:
        for node, name in (*self.context.references.items(), *self.context.quoted.items()):
            known = node in self.handled or self._is_static(node) or self._is_alias(node)
            if name == CLASS and not known:
                yield node, "uses FSDP1's class"
        for scope in self.file.scopes:
            for bindings in scope.bindings.values():
                for binding in bindings:
                    if isinstance(binding, Imported) and binding.member is not None:
                        if is_private(f"{binding.module}.{binding.member}"):
                            yield binding.statement, "imports a private part of FSDP1"

    def _is_static(self, node: ast.expr) -> bool:
        return getattr(self.file.parents.get(node), "attr", "") in _STATIC

    def _is_alias(self, node: ast.expr) -> bool:
        """Whether the class, or one of several, only gets another name, all uses of which are taken care of."""
        statement = self.file.statement(node)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0]
        is_value = node in (statement.value, *branches(statement.value))
        if not is_value or len(self.file.bindings(target)) != 1:
            return False  # the name may be something else
        name, reach = getattr(target, "id", ""), reach_of(self.context.program)
        loads = self.file.loads.get(name, ())
        handled = all(each in self.handled or self._is_static(each) for each in loads)
        return bool(loads) and handled and not reach.is_read(self.file, name)

    def interface(self) -> Iterator[Dependence]:
        for node in self.attributes(*_INTERFACE):
            if node.attr not in _STATIC or self.context.fsdp1(node.value) != CLASS:
                if not self._is_own(node):
                    yield node, f"uses {node.attr} of FSDP1"
        for node in self.attributes(*_OWN):
            if node.attr.startswith("register") or self.context.can_be_model(node.value):
                yield node, f"reads {node.attr}, which FSDP1 kept at the wrapper"

    def clipping(self) -> Iterator[Dependence]:
        for node in self.attributes("clip_grad_norm_"):
            if not any(d.startswith("torch.nn.utils") for d in self.context.dotted(node)):
                if not self._is_own(node):
                    yield node, "may clip by FSDP1's own clip_grad_norm_"

    def _is_own(self, node: ast.Attribute) -> bool:
        """Whether an attribute is one that the program's classes give their objects: `self` is no wrapper, nor is what a
        name certainly holds that was made by calling such a class."""
        classes = list(self._classes_of(node.value))
        return bool(classes) and all(
            not any(map(self.context.models.is_subclass, every))
            and any(node.attr in given_names(each.node) for each in every)
            for every in classes
        )

    def _classes_of(self, receiver: ast.expr) -> Iterator[list[Definition]]:
        """The classes that an object can be made of, each with those above it; empty where one is not of the program."""
        program, file = self.context.program, self.file
        cls = file.enclosing_class(receiver) if getattr(receiver, "id", "") == "self" else None
        found: list[Definition | None] = [] if cls is None else [Definition(file, cls)]
        made = self.context.value(receiver) if isinstance(receiver, ast.Name) else None
        if not found and made is not None and made.file is file and isinstance(made.node, ast.Call):
            leaves = leaves_of(self.context, made.node.func)
            found = [program.definition(each, file) for each in leaves]
        for each in found:
            every: list[Meaning] = []
            if each is not None and isinstance(each.node, ast.ClassDef):
                every = [each, *program.classes_above(each)]
            yield [cls for cls in every if isinstance(cls, Definition)]

    def inner_modules(self) -> Iterator[Dependence]:
        for node in self.attributes("module"):
            if isinstance(node.ctx, ast.Load) and not self.context.dotted(node):
                # Should a plain model come to a place of others, that has no such attribute, and it fails.
                is_others = was_wrapper(self.context, node) is False or self._is_own(node)
                if not is_others and not asks_first(self.file, node):
                    yield node, "reads .module, the model inside of its wrapper"

    def states(self) -> Iterator[Dependence]:
        for node in self.attributes("state_dict", "load_state_dict"):
            last = last_name(node.value).lower()
            if any(d.startswith("torch.distributed.") for d in self.context.dotted(node)):
                continue  # the module's function
            if self.context.can_be_model(node.value) or not _NO_MODEL.search(last):
                if not self._has_type(node):
                    yield node, WHOLE

    def _has_type(self, node: ast.Attribute) -> bool:
        """Whether a state dict is in a `with FSDP.state_dict_type(model, ...)` for that model, or below a call that sets it."""
        model, function = ast.unparse(node.value), self.file.function(node)
        for call in self.calls("state_dict_type", "set_state_dict_type"):
            if not call.args or ast.unparse(call.args[0]) != model:
                continue
            around = self.file.parents[call]
            if isinstance(around, ast.withitem):
                if self.file.parents[around] in self.file.ancestors(node):
                    return True
            elif self.file.function(call) is function and call.lineno < node.lineno:
                if self.file.statement(call) in getattr(function or self.file.tree, "body", ()):
                    return True
        return False

    def strings(self) -> Iterator[Dependence]:
        for node in self.file.of(ast.Constant):
            text = node.value
            if not isinstance(text, str) or len(text) > 200 or node in self.handled:
                continue
            if text in _INTERFACE[:-1] or text == "clip_grad_norm_":
                yield node, f'asks for "{text}"'
            elif "_fsdp_wrapped_module" in text and not is_prefix_taken_off(self.file, node):
                yield node, "looks for FSDP1's prefix in names"

    def on_meta(self) -> Iterator[Dependence]:
        text = "may build the model on the meta device"
        for node in self.file.of(ast.Constant):
            if isinstance(node.value, str) and re.match("meta(:|$)", node.value):
                if node not in self.handled:
                    yield node, text
        for call in self.file.of(ast.Call):
            if last_name(call.func) in _ON_META:
                yield call, text

    def names(self) -> Iterator[Dependence]:
        for node in self.attributes(*NAMED):
            summoned = is_summoned(self.file, node) and not self.before.nested()
            if not summoned and not is_safe(self.file, node):
                yield node, f"{node.attr} gives other names, without the wrapper's prefix"

    def classes(self) -> Iterator[Dependence]:
        for call in self.calls("type"):
            if isinstance(call.func, ast.Name) and len(call.args) == 1:
                if not self._tells_no_module(call):
                    yield call, "compares or names a class, which changes for a unit"
        for node in self.attributes("__class__"):
            if not self._tells_no_module(node):
                yield node, "compares or names a class, which changes for a unit"
        for call in self.calls("isinstance"):
            if len(call.args) == 2 and isinstance(call.args[0], ast.Name | ast.Attribute):
                if call not in self.handled and self._tells_root(*call.args):
                    yield call, "tests the class of the model, which its wrapper hid"

    def _tells_root(self, model: ast.expr, classes: ast.expr) -> bool:
        """Whether a test of a model, or of its units in a loop, names classes other than wrappers."""
        named = classes.elts if isinstance(classes, ast.Tuple) else [classes]
        others = [
            cls
            for cls in named
            if not any("arallel" in d or "FSDP" in d for d in self.context.dotted(cls))
        ]
        if not others or isinstance(model, ast.Attribute):
            return False
        bindings = self.file.bindings(model)
        if any(isinstance(getattr(b, "node", 0), ast.For | ast.comprehension) for b in bindings):
            return may_be_unit(self.context, model)
        return self.context.can_be_model(model)

    def _tells_no_module(self, node: ast.expr) -> bool:
        """Whether a class is only shown, or compared with one that no module has, or is not a module's."""
        parent, subject = self.file.parents[node], subject_of(node)
        if subject is not None and _NO_MODEL.search(last_name(subject).lower()):
            return True
        if isinstance(parent, ast.Attribute) and parent.attr in {"__name__", "__qualname__"}:
            return any(
                isinstance(each, ast.FormattedValue | ast.Raise)
                or getattr(getattr(each, "func", None), "id", "") in {"print", "repr"}
                or getattr(getattr(each, "func", None), "attr", "") in {"info", "debug", "warning"}
                for each in self.file.ancestors(parent)
            )
        if isinstance(parent, ast.FormattedValue):
            return True
        if not isinstance(parent, ast.Compare) or len(parent.comparators) != 1:
            return False
        other = parent.comparators[0] if parent.left is node else parent.left
        each = other.elts if isinstance(other, ast.Tuple | ast.List | ast.Set) else [other]
        return all(isinstance(cls, ast.Name) and not self.file.variable(cls) for cls in each)

    def calls_of_model(self) -> Iterator[Dependence]:
        for node in self.attributes("forward", "apply"):
            call = self.file.parents[node]
            of_unit = node.attr == "forward" and _UNIT.search(last_name(node.value))
            is_called = isinstance(call, ast.Call) and call.func is node
            if is_called and (of_unit or self.may_be_model(node.value)):
                yield node, f"calls {node.attr} of the model, which FSDP1 gathers for"
        for call in self.calls("deepcopy"):
            if call.args and self.may_be_model(call.args[0]):
                yield call, "copies a sharded model"
        for call in self.calls("save", "dump", "dumps"):
            if call.args and self.context.can_be_model(call.args[0]):
                own = isinstance(call.func, ast.Attribute) and self._is_own(call.func)
                if not own and self.context.program.definition(call.func, self.file) is None:
                    yield call, "saves the model whole, with its classes"
        for node in self.attributes("children", "_modules"):
            if self.context.can_be_model(node.value):
                yield node, "reads the children of the model, which are its wrapper's under FSDP1"

    def parameters(self) -> Iterator[Dependence]:
        clearing = (n for n in self.attributes("zero_grad") if self.may_be_model(n.value))
        yield from ((node, GATHERED) for node in clearing)
        for node in self.attributes("weight", "bias"):
            root = root_of(node)
            if root and self.may_be_model(root) and self.before.may_have_run(self.file, node):
                yield node, _CHANGED
        for node in self.attributes("parameters", "buffers"):
            if not self.may_be_model(node.value) or self._takes_sharded(node):
                continue
            calls, function = self._around(node)
            if any(map(_TAKES_SHARDED.search, (*calls, function))):
                if self.before.may_have_run(self.file, node):
                    yield node, GATHERED if any(map(_TAKES_SHARDED.search, calls)) else _CHANGED
            else:
                yield node, _CHANGED

    def changes(self) -> Iterator[Dependence]:
        yield from refused(self.file)
        for node in autocast.regions(self.context, self.may_be_model):
            yield (
                node,
                "may run the model twice in one autocast region, whose casts FSDP1 did not keep",
            )
        for node in self.attributes("data"):
            if isinstance(node.ctx, ast.Store) and getattr(node.value, "id", "") != "self":
                yield node, _SET
        stores = [n for n in self.file.of(ast.Attribute) if not isinstance(n.ctx, ast.Load)]
        for each in (*stores, *self.attributes("__dict__"), *self.calls("setattr", "vars")):
            value = getattr(self.file.parents[each], "value", None)
            if value is not None and self.context.can_be_model(value):
                continue  # it is set in what is around the unit: `self.model.student = FSDP(...)`
            if not self.before.covers(each) and may_be_unit(self.context, subject_of(each)):
                yield each, "sets an attribute, which FSDP1 kept at the wrapper"

    def _takes_sharded(self, node: ast.Attribute) -> bool:
        """Whether parameters are read where they are sharded: for clipping, which follows a backward, or before any forward."""
        calls, function = self._around(node)
        fresh = is_looked_at(self.file, node) or self.before.is_fresh(node)
        return fresh or any("clip_grad" in name for name in (*calls, function))

    def _around(self, node: ast.Attribute) -> tuple[list[str], str]:
        """The names of the functions that are called with a node, and of the one around it."""
        function, around = self.file.function(node), []
        for parent in self.file.ancestors(node):
            if isinstance(parent, ast.stmt):
                break
            if isinstance(parent, ast.Call):
                around.append(ast.unparse(parent.func))
        return around, "" if function is None else function.name
