"""Where a function lets go what it takes from a sharded model: parameters, their names, and modules.

What flows only into what is known to mean the same under FSDP2 is safe; each other use is a leak. A value is followed forward
through loops, comprehensions, names, and the functions of the same file.
"""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left import means_the_same as words
from fsdp_migrate.facts.file import given, last_name, root_of
from fsdp_migrate.facts.scopes import Parameter


class Kind(Enum):
    """What a value is."""

    PARAMETERS = "parameters"
    NAMED = "pairs of a name and a parameter"
    PARAMETER = "a parameter"
    NAME = "a name"
    MODULES = "modules"
    NAMED_MODULES = "pairs of a name and a module"
    MODULE = "a module"


class Leak(NamedTuple):
    """A use that may mean something else under FSDP2: how values are used there that `_USES` in taken_out.py names."""

    node: ast.expr
    use: str


# The kinds of the items of an iterable, where its items have parts by place.
_ITEMS = {
    Kind.PARAMETERS: (Kind.PARAMETER,),
    Kind.NAMED: (Kind.NAME, Kind.PARAMETER),
    Kind.MODULES: (Kind.MODULE,),
    Kind.NAMED_MODULES: (Kind.NAME, Kind.MODULE),
}
# `".".join(part for part in name.split(".") if not part.startswith("_"))`
_OWN_PARTS = re.compile(r"startswith\([\"']_[\"']\)")
_PREFIX = "_fsdp_wrapped_module"


class Flow:
    """What values of one file flow into."""

    def __init__(self, context: Context, *, were_flat: bool) -> None:
        self.context, self.file = context, context.file
        self.were_flat = were_flat
        self._seen: set[tuple[ast.AST, Kind]] = set()

    def leaks(self, node: ast.expr, kind: Kind) -> Iterator[Leak]:
        """The uses of a value that may mean something else."""
        if (node, kind) in self._seen:
            return
        self._seen.add((node, kind))
        parent = self.file.parents[node]
        if kind in _ITEMS:
            yield from self._iterable(node, parent, kind)
        elif kind is Kind.NAME:
            yield from self._name(node, parent)
        elif kind is Kind.PARAMETER:
            yield from self._parameter(node, parent)
        else:
            yield from self._module(node, parent)

    def _iterable(self, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
        if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
            if parent.iter is node:
                yield from self._bound(parent.target, _ITEMS[kind])
        elif isinstance(parent, ast.Call) and node is not parent.func:
            yield from self._given(node, parent, kind)
        elif isinstance(parent, ast.Attribute):
            call = self.context.call_of(parent)
            if call is not None and parent.attr in {"values", "items", "keys", "copy"}:
                of = {"values": Kind.PARAMETERS}.get(parent.attr, kind)
                yield from self.leaks(call, of if kind is Kind.NAMED else kind)
        elif isinstance(parent, ast.Subscript) and parent.value is node:
            if kind in {Kind.PARAMETERS, Kind.NAMED} and self.were_flat:
                yield Leak(parent, "order")
            elif isinstance(parent.slice, ast.Slice):
                yield from self.leaks(parent, kind)
            elif kind is Kind.PARAMETERS:
                yield from self.leaks(parent, Kind.PARAMETER)
        else:
            yield from self._passed_on(node, parent, kind)

    def _given(self, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
        """An iterable that a function is given."""
        name = last_name(call.func)
        if name in words.SAME:
            yield from self.leaks(call, kind)
        elif name in {"enumerate", "len"} and self._counts(kind):
            yield Leak(call, "order")
        elif name in {"enumerate", "zip"}:
            yield from self._beside(node, call, kind)
        elif name == "next" and len(_ITEMS[kind]) == 1:
            yield from self.leaks(call, _ITEMS[kind][0])
        elif name in {"filter", "map"}:
            yield from self._applied(call, kind)
        elif name.startswith("_foreach_"):
            yield from [Leak(call, "value")] if "norm" in name else []
        elif not self._is_optimizers(call) and name not in words.TAKES_PARAMETER | {"len", "next"}:
            yield from self._into(node, call, kind)

    def _counts(self, kind: Kind) -> bool:
        """Whether there were fewer, because a unit had one flat parameter."""
        return self.were_flat and kind in {Kind.PARAMETERS, Kind.NAMED}

    def _beside(self, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
        """The items beside others: `enumerate(node)`, `zip(others, node)`."""
        place = 1 if last_name(call.func) == "enumerate" else 0
        if node in call.args and not place:
            place = call.args.index(node)
        loop = self.file.parents[call]
        if isinstance(loop, ast.For | ast.comprehension) and isinstance(loop.target, ast.Tuple):
            if place < len(loop.target.elts):
                yield from self._bound(loop.target.elts[place], _ITEMS[kind])

    def _applied(self, call: ast.Call, kind: Kind) -> Iterator[Leak]:
        """What a lambda is applied to: `map(lambda p: p.norm(), node)`."""
        if call.args and isinstance(call.args[0], ast.Lambda):
            yield from self._bound_by(call.args[0], _ITEMS[kind])
        if last_name(call.func) == "filter":
            yield from self.leaks(call, kind)

    def _parameter(self, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
        if isinstance(parent, ast.Attribute):
            yield from self._asked(parent)
        elif isinstance(parent, ast.Call) and node is not parent.func:
            yield from self._given_one(node, parent)
        elif isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.MatMult):
            yield Leak(parent, "value")
        elif isinstance(parent, ast.BinOp | ast.UnaryOp):
            yield from self.leaks(parent, Kind.PARAMETER)
        elif isinstance(parent, ast.List | ast.Set | ast.GeneratorExp | ast.ListComp | ast.SetComp):
            yield from self.leaks(parent, Kind.PARAMETERS)
        else:
            yield from self._passed_on(node, parent, Kind.PARAMETER)

    def _asked(self, asked: ast.Attribute) -> Iterator[Leak]:
        """What is asked of a parameter, or done to it."""
        call = self.context.call_of(asked)
        freezes = asked.attr == "requires_grad_" or isinstance(asked.ctx, ast.Store)
        if freezes and asked.attr.startswith("requires_grad"):
            yield from [Leak(asked, "freeze")] if self.were_flat else []
        elif asked.attr in words.ELEMENTWISE and isinstance(asked.ctx, ast.Load):
            yield from self.leaks(call or asked, Kind.PARAMETER)
        elif asked.attr not in words.ASKED and call is not None:
            yield Leak(call, "value")

    def _given_one(self, node: ast.expr, call: ast.Call) -> Iterator[Leak]:
        """A parameter that a function is given."""
        name = last_name(call.func)
        if name in words.APPENDING and isinstance(call.func, ast.Attribute):
            yield from self._kept(call.func.value, Kind.PARAMETERS)
        elif name in words.ELEMENTWISE and isinstance(call.func, ast.Attribute):
            yield from self.leaks(call, Kind.PARAMETER)
        elif any(path.startswith("torch.nn.init.") for path in self.context.dotted(call.func)):
            yield Leak(call, "drawn")
        elif name == "save":
            yield Leak(call, "saved")
        elif name not in words.TAKES_PARAMETER and not self._is_optimizers(call):
            yield from self._into(node, call, Kind.PARAMETER)

    def _name(self, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
        """The uses of a name that had FSDP1's prefixes in it, with original parameters; flat ones have a rule of their own."""
        if self.were_flat:
            return
        leaks = False
        if isinstance(parent, ast.Attribute):
            yield from self._asked_of_name(parent)
        elif isinstance(parent, ast.Compare):
            leaks = not self._is_tested_alike(node, parent)
        elif isinstance(parent, ast.Subscript):
            leaks = parent.value is node or self._is_of_texts(parent.value)
        elif isinstance(parent, ast.Call) and node is not parent.func:
            yield from self._given_name(node, parent)
        elif isinstance(parent, ast.Assign | ast.NamedExpr):
            yield from self._passed_on(node, parent, Kind.NAME)
        if leaks and isinstance(parent, ast.expr):
            yield Leak(parent, "name")

    def _asked_of_name(self, asked: ast.Attribute) -> Iterator[Leak]:
        """`name.startswith("head")`, `name.split(".")`."""
        call = self.context.call_of(asked)
        if call is None or asked.attr == "endswith" or _PREFIX in self.context.source(call):
            return
        if asked.attr in words.NAMES:
            yield from self.leaks(call, Kind.NAME)
        elif not (asked.attr.endswith("split") and _has_no_dot(call.args)):
            yield Leak(call, "name")

    def _given_name(self, node: ast.expr, call: ast.Call) -> Iterator[Leak]:
        """`RATES.get(name)`, `re.match(pattern, name)`, and functions of the program."""
        name = last_name(call.func)
        if name == "get" and isinstance(call.func, ast.Attribute):
            yield from [Leak(call, "name")] if self._is_of_texts(call.func.value) else []
        elif name in {"match", "fullmatch", "fnmatch", "fnmatchcase"}:
            yield Leak(call, "name")
        elif name not in words.TAKES_PARAMETER | words.SEARCHING | words.APPENDING:
            yield from self._into(node, call, Kind.NAME)

    def _is_tested_alike(self, name: ast.expr, compare: ast.Compare) -> bool:
        """`"bias" in name`, `name in names_of(model)`: as true with FSDP1's prefixes in all names as without them."""
        if not isinstance(compare.ops[0], ast.In | ast.NotIn):
            other = compare.comparators[0] if name is compare.left else compare.left
            return not isinstance(other, ast.Constant)
        if name is compare.left:
            return not self._is_of_texts(compare.comparators[0])
        text = getattr(compare.left, "value", None)
        is_of_wrapper = _PREFIX in str(text)  # which has rules of its own
        return not isinstance(text, str) or is_of_wrapper or "." not in text.strip(".")

    def _is_of_texts(self, container: ast.expr) -> bool:
        """Whether names are written out in a list, a set or a dictionary."""
        if isinstance(container, ast.Name):
            found = self.file.variable(container)
            return any(self._is_of_texts(each.value) for each in (found.assigned if found else ()))
        if isinstance(container, ast.Call) and last_name(container.func) in {"set", "frozenset"}:
            return any(self._is_of_texts(each) for each in container.args)
        texts = (
            container.keys if isinstance(container, ast.Dict) else getattr(container, "elts", ())
        )
        return any(isinstance(getattr(each, "value", None), str) for each in texts)

    def _module(self, node: ast.expr, parent: ast.AST) -> Iterator[Leak]:
        if isinstance(parent, ast.Attribute):
            call = self.context.call_of(parent)
            if parent.attr in {"weight", "bias"} and isinstance(parent.ctx, ast.Load):
                yield from self.leaks(parent, Kind.PARAMETER)
            elif parent.attr == "requires_grad_" and call is not None and self.were_flat:
                yield Leak(call, "freeze")
            elif parent.attr == "__class__" and self._is_key(parent):
                yield Leak(parent, "class")
        elif isinstance(parent, ast.Call) and last_name(parent.func) == "type":
            if self._is_key(parent):
                yield Leak(parent, "class")

    def _is_key(self, node: ast.expr) -> bool:
        """Whether a class is looked up: `RATES[type(m)]`, `RATES.get(type(m))`, `type(m) in CLASSES`."""
        parent = self.file.parents[node]
        if isinstance(parent, ast.Call):
            return last_name(parent.func) == "get" and node in parent.args[:1]
        if isinstance(parent, ast.Compare):
            return isinstance(parent.ops[0], ast.In | ast.NotIn) and parent.left is node
        return isinstance(parent, ast.Subscript) and parent.slice is node

    def _passed_on(self, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
        """Steps of syntax, that leave a value what it is."""
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            for target in targets if parent.value is node else ():
                yield from self._kept(target, kind)
        elif isinstance(parent, ast.Dict | ast.DictComp):
            values = parent.values if isinstance(parent, ast.Dict) else [parent.value]
            if node in values:
                yield from self.leaks(parent, Kind.NAMED if kind is Kind.PARAMETER else kind)
        elif isinstance(parent, ast.Return | ast.Yield | ast.YieldFrom):
            yield from self._returned(parent, kind)
        elif self._is_kept_by(node, parent, kind):
            yield from self.leaks(parent, kind)  # type: ignore[arg-type]

    def _is_kept_by(self, node: ast.expr, parent: ast.AST, kind: Kind) -> bool:
        """Whether an expression is its operand, or holds it."""
        if isinstance(parent, ast.IfExp):
            return node is not parent.test
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, ast.Add) and kind in _ITEMS
        return isinstance(parent, ast.Starred | ast.Await | ast.List | ast.Tuple)

    def _returned(self, statement: ast.AST, kind: Kind) -> Iterator[Leak]:
        """What a function gives to the calls of it in the same file."""
        function = self.file.function(statement)
        if isinstance(statement, ast.Yield) and kind is Kind.PARAMETER:
            kind = Kind.PARAMETERS
        for call in self.file.calls.get(getattr(function, "name", ""), ()):
            yield from self.leaks(call, kind)

    def _kept(self, target: ast.expr, kind: Kind) -> Iterator[Leak]:
        """What is done with a variable, or with an attribute of the class around."""
        if isinstance(target, ast.Subscript):
            target = target.value
            kind = Kind.NAMED if kind is Kind.PARAMETER else kind
        for read in self._reads(target):
            if not _is_stored_into(self.file.parents[read], read):
                yield from self.leaks(read, kind)

    def _reads(self, target: ast.expr) -> Iterator[ast.expr]:
        """Where a variable is read, or an attribute of `self` in its class."""
        if isinstance(target, ast.Name):
            yield from self.file.reads(target)
        elif _is_own(target):
            cls = self.file.enclosing_class(target)
            for read in self.file.attributes.get(last_name(target), ()):
                if _is_own(read) and isinstance(read.ctx, ast.Load):
                    if self.file.enclosing_class(read) is cls:
                        yield read

    def _bound(self, target: ast.expr, kinds: tuple[Kind, ...]) -> Iterator[Leak]:
        """What a loop does with its variables."""
        parts = target.elts if isinstance(target, ast.Tuple) and len(kinds) > 1 else [target]
        if len(parts) != len(kinds):
            return
        for part, kind in zip(parts, kinds, strict=True):
            for read in self.file.reads(part) if isinstance(part, ast.Name) else ():
                is_clean = kind is Kind.NAME and self._is_clean(read)
                if self._is_in_loop(read, target) and not is_clean:
                    yield from self.leaks(read, kind)

    def _is_clean(self, read: ast.Name) -> bool:
        """Whether FSDP1's prefixes are taken off a name here, or were above."""
        for binding in self.file.bindings(read):
            value = getattr(binding, "value", None)
            if isinstance(value, ast.expr) and value.lineno <= read.lineno:
                text = self.context.source(value)
                if _PREFIX in text or _OWN_PARTS.search(text):
                    return True
        return False

    def _is_in_loop(self, read: ast.Name, target: ast.expr) -> bool:
        """Whether a read is in the loop whose target this is: a name may be that of several loops."""
        loop = self.file.parents[target]
        while isinstance(loop, ast.Tuple):
            loop = self.file.parents[loop]
        region = self.file.parents[loop] if isinstance(loop, ast.comprehension) else loop
        return any(each is region for each in self.file.ancestors(read))

    def _bound_by(self, function: ast.Lambda, kinds: tuple[Kind, ...]) -> Iterator[Leak]:
        """What a lambda does with its only argument."""
        if len(kinds) == 1 and len(function.args.args) == 1:
            name = function.args.args[0].arg
            for read in ast.walk(function.body):
                if isinstance(read, ast.Name) and read.id == name:
                    yield from self.leaks(read, kinds[0])

    def _into(self, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
        """What a function of the same file does with an argument; of any other nothing is known."""
        made = self.context.program.definition(call.func, self.file)
        if made is None:
            # A method of an object is unknown, and most of them keep what they are given.
            is_function = isinstance(call.func, ast.Name) or bool(self.context.dotted(call.func))
            is_read = is_function and kind in {Kind.PARAMETERS, Kind.PARAMETER}
            if is_read and not self._is_of_torch(call):
                yield Leak(call, "value")
            return
        if made.file is not self.file or isinstance(made.node, ast.ClassDef):
            return
        for argument in made.node.args.args:
            if given(call, made.node, argument.arg) is node:
                for read in self.file.loads.get(argument.arg, ()):
                    bindings = self.file.bindings(read)
                    if any(isinstance(b, Parameter) and b.argument is argument for b in bindings):
                        yield from self.leaks(read, kind)

    def _is_of_torch(self, call: ast.Call) -> bool:
        """Whether torch computes something, which has rules of its own, or raises for DTensors."""
        return any(path.startswith("torch.") for path in self.context.dotted(call.func))

    def _is_optimizers(self, call: ast.Call) -> bool:
        """Whether a call makes an optimizer, or groups for one."""
        text = self.context.source(call.func)
        if any(word in text for word in words.OF_OPTIMIZERS):
            return self.context.program.definition(call.func, self.file) is None
        root = root_of(call.func)
        return any(".optim." in path for path in self.context.dotted(root or call.func))


def _is_own(target: ast.AST) -> bool:
    """`self.parameters_to_train`."""
    return isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"


def _has_no_dot(arguments: list[ast.expr]) -> bool:
    """Whether a name is split at a text, and that at no dot."""
    text = getattr(arguments[0], "value", "") if arguments else "."
    return isinstance(text, str) and "." not in text


def _is_stored_into(parent: ast.AST, read: ast.expr) -> bool:
    """`groups[key] = value`: it puts something in, and takes nothing."""
    return (
        isinstance(parent, ast.Subscript)
        and isinstance(parent.ctx, ast.Store)
        and parent.value is read
    )
