"""Whether the constructors of a run become plain: one decision for all files that can share their models.

A plain constructor leaves nothing of FSDP1's wrapper. So either every constructor of these files is one that plain PyTorch
can express, and every use of FSDP1's interface is rewritten with it, or all of them stay on the bridge, where nothing depends
on what was seen.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from fsdp_migrate.codemods.constructor import precision, sharding, training, wrapping
from fsdp_migrate.codemods.constructor.before import Before
from fsdp_migrate.codemods.constructor.component import Components
from fsdp_migrate.codemods.constructor.construction import DIRECT, Construction, Constructions
from fsdp_migrate.codemods.constructor.dependence import WORDS, dependences
from fsdp_migrate.codemods.constructor.layout import Shape, edits, shape_of
from fsdp_migrate.codemods.constructor.makeup import BATCH_NORM, BUFFERS, may_hold, unused_part
from fsdp_migrate.codemods.constructor.origin import (
    check_origin,
    is_of_another_class,
    runs_once,
)
from fsdp_migrate.codemods.constructor.plain import (
    Plain,
    Stays,
    merged,
    unneeded_imports,
    without_import,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, overlap
from fsdp_migrate.codemods.models import Models
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import TORCH

# Where more files than these would have to be searched for a dependence on FSDP1, its model stays on the bridge: one of them
# has it, and reading them all takes longer than the rest of the run.
MOST_FILES = 200


@dataclass(frozen=True, eq=False)
class PlainForm:
    """A constructor in plain PyTorch: its parts by argument, together, and how it is written."""

    construction: Construction
    parts: dict[str, Plain]
    whole: Plain
    shape: Shape
    skip_root: bool

    def edits(self) -> list[Edit]:
        """The edits that make it plain."""
        made = edits(self.construction, self.whole, self.shape, skip_root=self.skip_root)
        context = self.construction.context
        return [*made, *(without_import(context, each) for each in self.unneeded_imports)]

    @property
    def unneeded_imports(self) -> list[ast.stmt]:
        """The imports of functools that only the code needs that goes."""
        return list(unneeded_imports(self.construction.context, self.removed))

    @property
    def imports(self) -> tuple[Import, ...]:
        """The names that it uses."""
        return (Import(TORCH, "fully_shard", self.construction.call.func), *self.whole.imports)

    @property
    def removed(self) -> tuple[ast.AST, ...]:
        """The code that it takes away: of the call, all but the model and what its arguments keep."""
        call = self.construction.call
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        kept = [self.construction.module]
        return (call.func, *(value for value in given if value not in kept), *self.whole.removed)


@dataclass(eq=False)
class Decision:
    """What is decided for the files that can share models.

    Attributes:
        forms: the plain forms of all constructors; empty if they stay on the bridge.
        reason: why they stay, and where.
    """

    forms: dict[ast.Call, PlainForm] = field(default_factory=dict)
    reason: str = ""


class Decisions:
    """The decisions of one run, each made once."""

    def __init__(self, models: Models) -> None:
        self.models = models
        self._made: dict[str, Decision] = {}
        self._contexts: dict[str, Context] = {}
        self._components: Components | None = None
        self._hopeful: bool | None = None
        self._constructions: dict[str, list[Construction]] = {}

    def of(self, context: Context) -> Decision:
        """The decision that holds for a file."""
        path = str(context.file.path)
        if path not in self._made:
            self._made[path] = Decision(reason="another constructor of this file stays there")
            self._contexts[path] = context
            self._decide(context)
        return self._made[path]

    def plain_forms(self, context: Context) -> list[PlainForm] | None:
        """The plain forms of all constructors that share a model with a file; None if they stay on the bridge."""
        forms = self.of(context).forms if context.plain else {}
        return list(forms.values()) or None

    def constructions(self, context: Context) -> list[Construction]:
        """The constructions of a file."""
        path = str(context.file.path)
        if path not in self._constructions:
            self._constructions[path] = Constructions(context).all
        return self._constructions[path]

    def _decide(self, context: Context) -> None:
        if not self._any_could_be_plain(
            context
        ):  # most stay for their arguments: no other file is read
            return
        if self._components is None:
            self._components = Components(self.models.program)
        paths = self._components.of(context.file.path)
        decision = self._of_files(context, paths)
        for path in (*paths, str(context.file.path)):
            self._made[path] = decision

    def _any_could_be_plain(self, context: Context) -> bool:
        """Whether some constructor of the run, and every one of this file, could be plain by its arguments."""
        if self._hopeful is None:
            files = (self._context(file, context) for file in self.models.program.files)
            every = [each for other in files for each in self.constructions(other)]
            self._hopeful = any(not why_not(each) for each in every)
        return self._hopeful and not any(map(why_not, self.constructions(context)))

    def _of_files(self, context: Context, paths: list[str]) -> Decision:
        mentioned = {str(file.path): file for file in self.models.program.files}
        contexts = [self._context(mentioned[p], context) for p in paths if p in mentioned]
        every = [each for other in contexts for each in self.constructions(other)]
        if not every:
            return Decision(reason="no constructor is among these files")
        assert self._components is not None
        texts = self._components.texts
        rest = [p for p in paths if p not in mentioned and WORDS.search(texts[p].encode())]
        if len(rest) > MOST_FILES:
            return Decision(reason=f"{len(rest)} other files can share the model")
        try:
            forms = {each.call: _form(each, every) for each in every}
            for other in contexts:
                _check_file(other, list(forms.values()))
            for path in rest:
                file = self.models.program.load(path)
                if file is not None:
                    _check_rest(self._context(file, context), (), ())
        except Stays as stays:
            return Decision(reason=str(stays))
        return Decision(forms)

    def _context(self, file: File, like: Context) -> Context:
        path = str(file.path)
        if path not in self._contexts:
            self._contexts[path] = Context(
                file,
                like.program,
                like.models,
                line_length=like.line_length,
                target=like.target,
            )
        return self._contexts[path]


_DECISIONS: WeakKeyDictionary[Models, Decisions] = WeakKeyDictionary()


def decisions(context: Context) -> Decisions:
    """The decisions of the run that a file is part of."""
    return _DECISIONS.setdefault(context.models, Decisions(context.models))


def parts_of(construction: Construction) -> dict[str, Plain]:
    """What each argument adds to the plain form.

    Raises:
        Stays: if an argument needs the runtime, or is not known here.
    """
    if construction.kind != DIRECT:
        raise Stays(f"{construction.kind} makes the units when the program runs")
    if construction.unknown:
        raise Stays(f"`{construction.unknown[0].arg}` is no argument of FSDP1")
    if construction.is_partly_known:
        raise Stays("some arguments are unpacked")
    parts: dict[str, Plain] = {}
    for module in (sharding, wrapping, training, precision):
        parts.update(module.plain(construction))
    return parts


def why_not(construction: Construction) -> str:
    """What in its own arguments keeps a constructor on the bridge; "" for nothing."""
    try:
        parts_of(construction)
    except Stays as stays:
        return str(stays)
    return ""


def _form(construction: Construction, every: list[Construction]) -> PlainForm:
    """The plain form of one constructor.

    Raises:
        Stays: if there is none.
    """
    parts = parts_of(construction)
    context = construction.context
    precise = parts["mixed_precision"]
    alone = len(every) == 1 and runs_once(context, context.file, construction.call)
    casts = bool(precise.shared or precise.root or precise.above)
    broadcasts = bool(parts["sync_module_states"].above)
    if (casts or broadcasts) and not alone:
        raise Stays("another constructor may wrap a part of the model, or the whole")
    if casts:
        parts["mixed_precision"] = _for_model(construction, precise)
    check_origin(construction)
    if part := unused_part(construction):
        raise Stays(
            f"{part} may take no part in a forward: FSDP1 gives its parameters zero gradients"
        )
    whole = merged(parts.values())
    shape = shape_of(construction, whole)
    for need in (Import(TORCH, "fully_shard"), *whole.imports):
        if not context.means(need.name, construction.call, f"{need.module}.{need.name}"):
            raise Stays(f"the name {need.name} means something else in this file")
    policy = construction.value("auto_wrap_policy")
    classes = wrapping.classes_of(construction, policy) if policy is not None else []
    return PlainForm(
        construction, parts, whole, shape, skip_root=not is_of_another_class(construction, classes)
    )


def _for_model(construction: Construction, precise: Plain) -> Plain:
    """Mixed precision for the model at hand.

    Raises:
        Stays: if it may hold a BatchNorm, which FSDP1 keeps in full precision where there is a policy.
    """
    if construction.value("auto_wrap_policy") is not None and may_hold(construction, BATCH_NORM):
        raise Stays(
            "mixed_precision: FSDP1 keeps BatchNorm in full precision, and there may be one"
        )
    return precise if may_hold(construction, BUFFERS) else precision.without_buffers(precise)


def _check_file(context: Context, forms: list[PlainForm]) -> None:
    """Checks that everything else in a file that depends on FSDP1 is rewritten, too, and that the edits go together."""
    from fsdp_migrate.codemods.registry import CODEMODS
    from fsdp_migrate.codemods.uses import classes, summon, training, unwrapping

    own = [form for form in forms if form.construction.context.file is context.file]
    uses = (training, classes, unwrapping, summon)
    found = [each for use in uses for each in use.plain(context, forms)]
    for module in CODEMODS:
        if module not in uses and module is not sys.modules.get(f"{__package__}.ledger"):
            found += module.find(context)
    edited = [each for each in found if each.edits is not None]
    try:
        every = {edit for form in own for edit in form.edits()}
        every |= {edit for each in edited if each.edits for edit in each.edits()}
    except Refused as refusal:
        raise Stays(str(refusal)) from None
    if overlap(sorted(every, key=lambda edit: (edit.start, edit.end))):
        raise Stays("two rewrites change the same code")
    regions = [node for each in (*edited, *own) for node in each.removed]
    handled = {node for region in regions for node in ast.walk(region)}
    for each in edited:
        handled.add(each.node)
        if isinstance(each.node, ast.Call):
            handled.add(each.node.func)
    _check_rest(context, handled, [form.construction for form in own])


def _check_rest(
    context: Context, handled: Iterable[ast.AST], constructions: Iterable[Construction]
) -> None:
    before = Before(context, constructions)
    for node, text in dependences(context, set(handled), before):
        raise Stays(f"{context.file.shown}:{getattr(node, 'lineno', 1)} {text}")
