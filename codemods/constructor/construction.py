"""One call that makes units of FSDP1: how it is spelled, and its arguments by FSDP1's signature."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.values import branches

if TYPE_CHECKING:
    from fsdp_migrate.codemods.constructor.options import Fixed

# FullyShardedDataParallel.__init__, the same from torch 2.2 to 2.13.
SIGNATURE = (
    "module",
    "process_group",
    "sharding_strategy",
    "cpu_offload",
    "auto_wrap_policy",
    "backward_prefetch",
    "mixed_precision",
    "ignored_modules",
    "param_init_fn",
    "device_id",
    "sync_module_states",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "ignored_states",
    "device_mesh",
)
# Whatever their value, these change speed or memory at most, never a number.
FREE = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
# Spellings of torch 1.11 to 2.0.
FORMER_NAMES = {
    "fsdp_auto_wrap_policy": "auto_wrap_policy",
    "ignored_parameters": "ignored_states",
}

# What of a model a run must have seen, the same in all calls.
NEEDED = {"parameters_held", "batch_norm", "buffers", "units"}
NEEDED |= {"all_of_classes", "root_is_alike", "other_options", "device_type", "shard_ranks"}

# What makes units, as findings name it.
DIRECT, SUBCLASS = "FSDP(...)", "a subclass of FSDP"
CHOSEN = "a class that an expression chooses"
PARTIAL, ENABLE_WRAP, WRAP = "partial(FSDP, ...)", "wrapper_cls=FSDP", "wrap(...)"

CONSTRUCTOR = Rule(
    "FSDP002",
    "fsdp1-constructor",
    "FSDP(model, ...) runs on the bridge, or becomes fully_shard(model, ...)",
)
UNPACKED = Rule(
    "FSDP004",
    "dynamic-constructor",
    "the runtime binds arguments that come from an unpacked dictionary",
)
UNKNOWN = Rule("FSDP019", "unknown-argument", "an argument that FSDP1 does not have")


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument, or one key of a dictionary that is unpacked into the call.

    Attributes:
        name: its name in FSDP1's signature.
        value: the expression.
        node: the keyword, the value of a positional argument, or what adds the key to the dictionary.
        unpacked: it is a key of a dictionary.
    """

    name: str
    value: ast.expr
    node: ast.AST
    unpacked: bool = False


class Construction:
    """A call that makes units, or says how `wrap` and a `partial` make them.

    Attributes:
        call: the call.
        kind: DIRECT, SUBCLASS, PARTIAL, ENABLE_WRAP, WRAP, or CHOSEN: `cls(...)` behind `cls = FSDP if ... else DDP`, where
            a run saw FSDP1's.
        arguments: its arguments, in the order of the source; a dictionary may give one several times.
        unknown: keywords that FSDP1 does not have.
        unseen: dictionaries that are unpacked, whose keys are not known.
        dictionaries: what is unpacked, and may have other keys or values than this file shows.
        fixed: dictionaries that are unpacked and certainly have the keys that the file shows.
        maker: the `partial` or `enable_wrap` that gives this call its other arguments; None for a direct call.
        users: of a `partial` and of `enable_wrap`, the calls that it gives arguments.
        is_sure: whether the call certainly makes a unit; `wrap(...)` does so only inside `enable_wrap`.
    """

    def __init__(self, context: Context, call: ast.Call, kind: str) -> None:
        self.context = context
        self.call = call
        self.kind = kind
        self.arguments: list[Argument] = []
        self.unknown: list[ast.keyword] = []
        self.unseen: list[ast.keyword] = []
        self.dictionaries: list[ast.expr] = []
        self.fixed: list[Fixed] = []
        self.maker: Construction | None = None
        self.users: list[Construction] = []
        self.is_sure = True
        self._bind()

    def _bind(self) -> None:
        for name, value in zip(self._positional, self._given, strict=False):
            if isinstance(value, ast.Starred):
                break  # how many it gives is not known
            self.arguments.append(Argument(name, value, value))
        for keyword in self.call.keywords:
            if keyword.arg is None:
                self._unpack(keyword)
            else:
                name = FORMER_NAMES.get(keyword.arg, keyword.arg)
                if name in SIGNATURE:
                    self.arguments.append(Argument(name, keyword.value, keyword))
                elif self.kind in (DIRECT, PARTIAL):
                    self.unknown.append(keyword)

    def made_by(self, maker: Construction, *, is_sure: bool) -> None:
        """Adds the arguments that a `partial` or `enable_wrap` gives the call."""
        own = {argument.name for argument in self.arguments}
        self.arguments += [each for each in maker.arguments if each.name not in own]
        self.unseen += maker.unseen
        self.dictionaries += maker.dictionaries
        self.fixed += maker.fixed
        self.maker, self.is_sure = maker, is_sure
        maker.users.append(self)

    @property
    def _positional(self) -> tuple[str, ...]:
        """What positional arguments are bound to; a subclass may have a signature of its own."""
        return () if self.kind in (SUBCLASS, ENABLE_WRAP) else SIGNATURE

    @property
    def _given(self) -> list[ast.expr]:
        """The positional arguments for the class: those of `partial(FSDP, ...)` come behind the class."""
        return self.call.args[1:] if self.kind == PARTIAL else self.call.args

    def _unpack(self, keyword: ast.keyword) -> None:
        from fsdp_migrate.codemods.constructor.options import fixed, given_keys

        known = fixed(self.context, keyword.value, self.call)
        if known is not None and all(key.name in SIGNATURE for key in known.keys):
            self.fixed.append(known)
            self.arguments += [Argument(key.name, key.value, key.node) for key in known.keys]
            return
        self.dictionaries.append(keyword.value)
        keys = given_keys(self.context, keyword.value)
        if not keys:
            self.unseen.append(keyword)
        for key in keys:
            name = FORMER_NAMES.get(key.name, key.name)
            if name in SIGNATURE:
                self.arguments.append(Argument(name, key.value, key.node, unpacked=True))

    @property
    def is_partly_known(self) -> bool:
        """Whether a dictionary or a star gives arguments that decide when the program runs."""
        return bool(
            self.unseen
            or any(argument.unpacked for argument in self.arguments)
            or any(isinstance(value, ast.Starred) for value in self.call.args)
        )

    def value(self, name: str) -> ast.expr | None:
        """The expression given for an argument; None if it is left out, or the literal None."""
        for argument in self.arguments:
            if argument.name == name:
                return None if self.is_none(argument.value) else argument.value
        return None

    def is_none(self, value: ast.expr) -> bool:
        """Whether an expression is certainly None."""
        return self.constant(value) is None

    def constant(self, value: ast.expr) -> object:
        """The value of an expression that is a literal, directly or behind a name; `...` for any other."""
        made = self.context.value(value)
        return made.node.value if made is not None and isinstance(made.node, ast.Constant) else ...

    def member(self, value: ast.expr, owner: str) -> str | None:
        """The member of an FSDP1 enum that an expression is: `NO_SHARD` for `ShardingStrategy.NO_SHARD`."""
        made = self.context.value(value)
        found = self.member_of(made.node) if made is not None else ("", "")
        return found[1] if found[0] == owner else None

    def member_of(self, node: ast.expr) -> tuple[str, str]:
        """`(ShardingStrategy, NO_SHARD)` for what is written so, in this file or another."""
        program = self.context.program
        files = (self.context.file, *program.files)
        file = next((each for each in files if node in each.parents), None)
        if not isinstance(node, ast.Attribute) or file is None:
            return "", ""
        return program.fsdp1(node.value, file) or "", node.attr

    @cached_property
    def ran(self) -> Mapping[str, Any] | None:
        """What was true of the model whenever the constructor ran; None if it did not run, or that differed."""
        recorded = self.context.recorded(self.call)
        known = recorded.facts if recorded is not None else {}
        return known if known.keys() >= NEEDED else None

    @property
    def module(self) -> ast.expr | None:
        """The module that is wrapped."""
        return self.value("module")


class Constructions:
    """The constructions of a file."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @cached_property
    def all(self) -> list[Construction]:
        """Every one, in the order of the source."""
        if not (self.context.references or self._subclasses):
            return []
        found = [
            Construction(self.context, call, kind)
            for call in self.context.file.of(ast.Call)
            if (kind := self.kind(call)) is not None
        ]
        if any(each.kind in (PARTIAL, ENABLE_WRAP) for each in found):
            from fsdp_migrate.codemods.constructor.makers import find_makers

            find_makers(self.context, found)
        return sorted(found, key=lambda each: (each.call.lineno, each.call.col_offset))

    def kind(self, call: ast.Call) -> str | None:
        """What a call is, or None if it makes no units."""
        name = self.context.references.get(call.func)
        if name == CLASS:
            return DIRECT
        if name == "wrap":
            return WRAP
        if call.args and self._is_class(call.args[0]):
            if "functools.partial" in self.context.dotted(call.func):
                return PARTIAL
        if any(k.arg == "wrapper_cls" and self._is_class(k.value) for k in call.keywords):
            return ENABLE_WRAP
        if self._is_own(call.func):
            return SUBCLASS
        if self.context.recorded(call) is not None and self._chosen(call.func):
            return CHOSEN
        if self._mentions_partial and isinstance(call.func, ast.Name):
            is_made_by_partial = self.context.models.is_constructor(call, self.context.file)
            return WRAP if is_made_by_partial else None
        return None

    def _chosen(self, name: ast.expr) -> bool:
        """Whether a local name has FSDP1's class in one of several cases."""
        made = self.context.value(name) if isinstance(name, ast.Name) else None
        return made is not None and any(map(self._is_class, branches(made.node)))

    def _is_class(self, expression: ast.expr) -> bool:
        if self.context.references.get(expression) == CLASS:
            return True
        return self._subclasses and self.context.models.is_class(expression, self.context.file)

    @cached_property
    def _mentions_partial(self) -> bool:
        return "partial" in self.context.file.text

    @property
    def _subclasses(self) -> bool:
        """Whether the program has subclasses of FSDP1's."""
        return bool(self.context.models.subclasses)

    def _is_own(self, function: ast.expr) -> bool:
        """Whether a function is a subclass of FSDP1's in the program, or `super().__init__` inside of one."""
        context = self.context
        if not self._subclasses:
            return False
        if isinstance(function, ast.Attribute) and function.attr == "__init__":
            above = function.value
            cls = context.file.enclosing_class(function)
            return (
                isinstance(above, ast.Call)
                and getattr(above.func, "id", "") == "super"
                and cls is not None
                and context.models.is_subclass(Definition(context.file, cls))
            )
        return isinstance(function, ast.Name | ast.Attribute) and any(
            context.models.is_subclass(meaning)
            for meaning in context.program.definitions(function, context.file)
        )
