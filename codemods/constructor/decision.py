"""Whether the constructors of a run become plain: one decision for all that can share a model.

A plain constructor leaves nothing of FSDP1's wrapper. So either every constructor that can share a model with it is one that
plain PyTorch can express, and every use of FSDP1's interface is rewritten with it, or all of them stay on the bridge, where
nothing depends on what was seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial

from fsdp_migrate.codemods.constructor import precision, recorded, wrapping
from fsdp_migrate.codemods.constructor.before import Before, are_held
from fsdp_migrate.codemods.constructor.class_names import finds_by_class
from fsdp_migrate.codemods.constructor.construction import (
    Construction,
    Constructions,
)
from fsdp_migrate.codemods.constructor.contents import BATCH_NORM, BUFFERS, Contents
from fsdp_migrate.codemods.constructor.dependence import GATHERED, WHOLE, WORDS, dependences
from fsdp_migrate.codemods.constructor.form import PlainForm, handled_by, parts_of, why_not
from fsdp_migrate.codemods.constructor.layout import definition, shape_of
from fsdp_migrate.codemods.constructor.makers import runs_under
from fsdp_migrate.codemods.constructor.origin import (
    Origin,
    callers,
    may_be_nested,
    origin_of,
    stays_inside,
)
from fsdp_migrate.codemods.constructor.plain import Plain, Stays, leaves_of, merged
from fsdp_migrate.codemods.constructor.recorded_units import check_outputs
from fsdp_migrate.codemods.constructor.translate import beside_batch_norm
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import RUNTIME, TORCH
from fsdp_migrate.facts.program import External, Program
from fsdp_migrate.facts.reach import reach_of

# Where more files than these would have to be searched for a dependence on FSDP1, its model stays on the bridge: one of them
# has it, and reading them all takes longer than the rest of the run.
MOST_FILES = 200
# What a file has where a rewrite for plain models can change it.
_USES = re.compile(r"FullyShardedDataParallel|no_sync|clip_grad_norm_|\.module\b|fsdp(?<!\wfsdp)\b")


class _Needs(Stays):
    """A dependence that the plain form can provide for."""

    def __init__(self, reason: str, needs: set[str]) -> None:
        super().__init__(reason)
        self.needs = needs


@dataclass(eq=False)
class Decision:
    """What is decided for the constructors that can share a model.

    Attributes:
        forms: the plain forms of all of them; empty if they stay on the bridge.
        reason: why they stay, and where.
    """

    forms: dict[ast.Call, PlainForm] = field(default_factory=dict)
    reason: str = ""


class Decisions:
    """The decisions of one run, each made once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._made: dict[str, Decision] = {}
        self._contexts: dict[str, Context] = {}
        self._constructions: dict[str, list[Construction]] = {}
        self._groups: list[set[str]] | None = None
        self._functions: dict[File, dict[str, str]] = {}

    @cached_property
    def contents(self) -> Contents:
        """What the models of the run are made of."""
        return Contents(self.program)

    def of(self, context: Context) -> Decision:
        """The decision that holds for a file."""
        path = str(context.file.path)
        if path not in self._made:
            self._made[path] = Decision(reason="another constructor in this file stays there")
            self._contexts[path] = context
            group = next((each for each in self._grouped(context) if path in each), {path})
            decision = self._decided(context, sorted(group))
            self._made.update(dict.fromkeys((*group, path), decision))
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

    def _grouped(self, context: Context) -> list[set[str]]:
        """The files that mention FSDP, in groups that can share a model: those of each file that wraps one."""
        if self._groups is None:
            self._groups = []
            files = {str(file.path): self._context(file, context) for file in self.program.files}
            wrapping = [path for path, each in files.items() if self.constructions(each)]
            # A file alone is its own group.
            if len(files) < 2 or all(any(self._stays(files[path])) for path in wrapping):
                return self._groups
            using = {path for path in files if _USES.search(files[path].file.text)}
            for path in wrapping:
                group = using & {path, *self._reached(files[path])}
                for other in [each for each in self._groups if each & group]:
                    self._groups.remove(other)
                    group |= other
                self._groups.append(group)
        return self._groups

    def _decided(self, context: Context, paths: list[str]) -> Decision:
        mentioned = {str(file.path): file for file in self.program.files}
        contexts = [self._context(mentioned[path], context) for path in paths]
        if any(stays for other in contexts for stays in self._stays(other)):
            return Decision(reason="another constructor that may share the model stays there")
        try:
            found = recorded.origin if self.program.recorded else origin_of
            origins = {
                each: found(each)
                for other in contexts
                for each in self.constructions(other)
                if not self._is_idle(each) and not each.users
            }
            if not origins:
                return Decision(reason="no caller of the function that wraps the model was found")
            try:
                forms = self._forms(contexts, origins)
            except _Needs as dependence:
                forms = self._forms(contexts, origins, dependence.needs)
        except Stays as stays:
            return Decision(reason=str(stays))
        return Decision(forms)

    def _forms(
        self,
        contexts: list[Context],
        origins: dict[Construction, Origin],
        needs: Collection[str] = (),
    ) -> dict[ast.Call, PlainForm]:
        """The plain forms of some constructors, and of what makes them.

        Args:
            needs: what they provide for: GATHERED, by a root that frees its parameters after forward, so that it shows shards
                at any time; WHOLE, by state dicts as FSDP1 had them.

        Raises:
            Stays: if one has none.
        """
        whole_states = WHOLE in needs
        forms = {e.call: self._form(e, origins, whole_states=whole_states) for e in origins}
        if GATHERED in needs:
            forms = {call: form.freeing() for call, form in forms.items()}
        self._check(contexts, list(forms.values()), list(origins.values()), needs)
        return forms | {e.maker.call: forms[e.call] for e in origins if e.maker is not None}

    def _reached(self, context: Context) -> list[str]:
        """The files that can get a model from one, or have its class."""
        path = context.file.path
        alone = all(map(self._is_local, self.constructions(context)))
        return [str(path)] if alone else reach_of(self.program).of(path)

    def _is_local(self, construction: Construction) -> bool:
        """Whether a model of another package is used in the function that wraps it, and nowhere else."""
        if not stays_inside(construction):
            return False
        try:
            factories = origin_of(construction).factories
        except Stays:
            return False
        return all(isinstance(self.contents.made_of(*factory), External) for factory in factories)

    def _stays(self, context: Context) -> Iterator[bool]:
        """Whether each constructor of a file stays on the bridge for its own arguments."""
        for each in self.constructions(context):
            yield bool(why_not(each)) and not self._is_idle(each)

    def idle(self, context: Context) -> list[ast.AST]:
        """The functions of a file whose constructors never run: they stay as they are."""
        functions = [
            context.file.function(each.call) or each.call
            for each in self.constructions(context)
            if self._is_idle(each)
        ]
        return list(dict.fromkeys(functions))

    def _is_idle(self, construction: Construction) -> bool:
        """Whether a constructor never runs: nothing calls its function, and its file is a program by itself."""
        context = construction.context
        function = context.file.function(construction.call)
        if function is None or any(callers(context, context.file, function)):
            return False
        cls = context.file.enclosing_class(function) if function.name == "__init__" else None
        handed_on = context.file.loads.get(function.name if cls is None else cls.name)
        return not handed_on and reach_of(self.program).is_start(str(context.file.path))

    def _form(
        self, construction: Construction, origins: dict[Construction, Origin], *, whole_states: bool
    ) -> PlainForm:
        """The plain form of one constructor.

        Args:
            whole_states: whether the model's own state dicts are to be whole.

        Raises:
            Stays: if there is none.
        """
        parts, origin = parts_of(construction), origins[construction]
        check_outputs(construction, lambda: self.contents.dataclasses_made(origin))
        context, precise = construction.context, parts["mixed_precision"]
        ran = construction.ran
        sync, casts = parts["sync_module_states"], precise.above or precise.below
        if precise.shared or precise.root or casts or sync.above or sync.each:
            if self._may_be_nested(construction, origins):
                raise Stays("another constructor may wrap the model or a part of it")
        norms = self._has_norms(construction, parts, origin)
        if casts and not (ran["buffers"] if ran else self.contents.may_hold(origin, BUFFERS)):
            parts["mixed_precision"] = precision.without_buffers(precise)
        parts["module"] = self._behind(construction, origin, whole_states=whole_states)
        units = wrapping.listed(construction)
        if units and not norms and self.contents.builds_each(origin, units):
            part = replace(parts["auto_wrap_policy"], units="", members=(f"{units}.*",))
            parts["auto_wrap_policy"] = replace(part, message="becomes a loop over these modules")
        whole = merged(parts.values())
        if norms:
            whole = beside_batch_norm(whole, context.free("mp_policy", construction.call))
        shape = shape_of(construction, whole)
        for need in (Import(TORCH, "fully_shard"), *whole.imports):
            if not context.means(need.name, construction.call, f"{need.module}.{need.name}"):
                raise Stays(f"the name {need.name} means something else in this file")
        classes = None if ran else wrapping.classes_of(construction)
        skip = classes is not None and not self.contents.is_of_another_class(
            origin, context, classes
        )
        skip = bool(ran["root_is_alike"]) if ran else skip
        if shape.function and construction.maker is None:
            code = definition(construction, whole, shape, skip_root=skip)
            named = self._functions.setdefault(context.file, {})
            free = context.free(f"shard_{len(named) + 1}" if named else "shard", construction.call)
            shape = replace(shape, function=named.setdefault(code, free))
        return PlainForm(construction, parts, whole, shape, skip_root=skip)

    def _may_be_nested(
        self, construction: Construction, origins: dict[Construction, Origin]
    ) -> bool:
        """Whether one constructor may wrap a part of what another wraps: by what a run has seen, else by the files."""
        seen = [None if each.ran is None else each.ran.get("has_units") for each in origins]
        if None not in seen:
            return any(seen)
        return may_be_nested(construction.context, origins[construction], origins.values())

    def _behind(self, construction: Construction, origin: Origin, *, whole_states: bool) -> Plain:
        """The calls behind the sharding, for what FSDP1's models do by themselves."""
        at, calls, above = construction.call.func, dict[Import, str](), ""
        if origin.has_optimizer:
            name = construction.context.free("unsharded", construction.call)
            above = f"{name} = dict({{model}}.named_parameters())"
            calls[Import(RUNTIME, "replace_in_optimizers", at)] = f"{name}, {{model}}"
        if not origin.factories or self.contents.may_leave_unused(origin):
            calls[Import(RUNTIME, "fill_unused_gradients", at)] = "{model}"
        made = (self.contents.made_of(*each) for each in origin.factories)
        if finds_by_class(
            made, map(reach_of(self.program).text, self._reached(construction.context))
        ):
            calls[Import(RUNTIME, "keep_class_names", at)] = "{model}"
        if whole_states:
            calls[Import(RUNTIME, "use_full_state_dicts", at)] = "{model}"
        below = tuple(f"{each.name}({given})" for each, given in calls.items())
        return Plain(above=(above,) if above else (), below=below, imports=tuple(calls))

    def _has_norms(
        self, construction: Construction, parts: Mapping[str, Plain], origin: Origin
    ) -> bool:
        """Whether FSDP1 may make units in full precision of the model's BatchNorms.

        Raises:
            Stays: if it may do so in some runs alone.
        """
        ran = construction.ran
        units, precise = parts["auto_wrap_policy"], parts["mixed_precision"]
        if units.norms or not (units.units or units.members):
            return units.norms
        if not (precise.shared or precise.root or precise.above):
            return False
        if ran:
            return bool(ran["batch_norm"])
        value, context = construction.value("mixed_precision"), construction.context
        may_hold = value is not None and self.contents.may_hold(origin, BATCH_NORM)
        if may_hold and value is not None and len(list(leaves_of(context, value))) > 1:
            raise Stays("the model may have a BatchNorm, and mixed_precision may be None")
        return may_hold

    def _check(
        self,
        contexts: list[Context],
        forms: list[PlainForm],
        origins: list[Origin],
        provided: Collection[str],
    ) -> None:
        """Checks that everything that depends on FSDP1 is rewritten, too, and that the edits go together.

        Args:
            provided: the dependences that the forms provide for.

        Raises:
            _Needs: with the first place for which they would have to provide as well.
            Stays: with the first place that depends on FSDP1 in another way.
        """
        needed: dict[str, str] = {}
        ran = all(form.construction.ran is not None for form in forms)
        running = {e.construction.context.file.function(e.construction.call) for e in forms}
        mentioned = {str(context.file.path) for context in contexts}
        wrapping = {form.construction.context.file: form.construction.context for form in forms}
        paths = {path for context in wrapping.values() for path in self._reached(context)}
        rest = [
            p
            for p in sorted(paths - mentioned)
            if WORDS.search(reach_of(self.program).text(p).encode())
        ]
        if len(rest) > MOST_FILES:
            raise Stays(f"{len(rest)} other files may share the model")
        loaded = [file for path in rest if (file := self.program.load(path)) is not None]
        others = [self._context(file, contexts[0]) for file in loaded]

        uses = partial(reach_of(self.program).uses, paths)
        if not all(runs_under(each.construction, uses, self._contexts.values()) for each in forms):
            raise Stays("wrap may also be called where enable_wrap is not around it")
        every = (*contexts, *others)
        factories = {call for origin in origins for _, call in origin.factories}
        parts = (may_be_nested(contexts[0], each, origins) for each in origins)
        nested = cache(lambda: any(parts) or any(map(are_held, every)))
        for context in every:
            own = [form for form in forms if form.construction.context.file is context.file]
            handled = handled_by(context, forms, own) if context in contexts else set()
            idle = self.idle(context) if context in contexts else []
            handled |= {node for each in idle for node in ast.walk(each)}
            if idle and any(form.whole.statements for form in own):
                raise Stays("a constructor that nothing calls may have the same policy")
            made = [form.construction for form in forms]
            before = Before(context, made, partial(_calls, every), factories, nested=nested)
            for node, text in dependences(context, handled, before, has_memory=ran):
                function = context.file.function(node)
                unused = (
                    ran and function not in running and reach_of(self.program).is_unused(function)
                )
                if unused or before.rules_out(node, uses):
                    continue
                reason = f"{context.file.shown}:{getattr(node, 'lineno', 1)} {text}"
                if text not in (GATHERED, WHOLE):
                    raise Stays(reason)
                needed.setdefault(text, reason)
        if missing := needed.keys() - set(provided):
            raise _Needs(needed[min(missing)], set(needed))

    def _context(self, file: File, like: Context) -> Context:
        path = str(file.path)
        if path not in self._contexts:
            self._contexts[path] = Context(
                file, like.program, writes=like.writes, target=like.target
            )
        return self._contexts[path]


def _calls(contexts: Iterable[Context], name: str) -> Iterator[tuple[File, ast.Call]]:
    """The calls of a name in some files."""
    for context in contexts:
        if name in context.file.text:
            for call in context.file.of(ast.Call):
                if getattr(call.func, "attr", getattr(call.func, "id", "")) == name:
                    yield context.file, call


def decisions(context: Context) -> Decisions:
    """The decisions of the run that a file is part of."""
    return _decisions_of(context.program)


@lru_cache(maxsize=1)  # of this run only: they hold on to its files
def _decisions_of(program: Program) -> Decisions:
    return Decisions(program)
