"""Where a program lets go what it takes from a sharded model: parameters, their names, and modules.

What flows only into what is known to mean the same under FSDP2 is safe; each other use is a leak. A value is followed forward
through loops, comprehensions, names, and the functions of the same file.
"""

import ast
import builtins
from collections.abc import Callable, Iterator

from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.clean_names import is_clean
from fsdp_migrate.codemods.by_hand.kinds import (
    COMPREHENSIONS,
    ITEM,
    ITEMS,
    ONE_MODULE,
    SEVERAL,
    Kind,
    Leak,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import given, is_method, is_name, last_name, root_of
from fsdp_migrate.facts.nodes import (
    any_below,
    any_is,
    calls_around,
    has_any,
    is_parameter,
    targets_of,
)
from fsdp_migrate.facts.scopes import Parameter


class Flow:
    """What values of one file flow into.

    Args:
        uses: what tells the uses of a value of some kind: the modules beside this one that are called after them.
        were_flat: whether a unit of FSDP1 had one flat parameter.
        in_place: whether modules have no wrappers any more: in all forms but the bridge.
    """

    def __init__(self, context: Context, uses: "Uses", *, were_flat: bool, in_place: bool) -> None:
        self._uses = uses
        self.context = context
        self.file = context.file
        self.were_flat = were_flat
        self.in_place = in_place
        self._seen: set[tuple[ast.AST, Kind]] = set()

    def leaks(self, node: ast.AST, kind: Kind | None) -> Iterator[Leak]:
        """The uses of a value that may mean something else."""
        if kind is None or (node, kind) in self._seen:
            return
        self._seen.add((node, kind))
        parent = self.file.parents[node]
        if isinstance(parent, ast.keyword):
            parent = self.file.parents[parent]
        if not isinstance(node, ast.expr):
            return
        yield from self._uses(self, node, parent, kind)

    def passed_on(self, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
        """Steps of syntax, that leave a value what it is."""
        match parent:
            case ast.Assign(value=value) | ast.AnnAssign(value=value) if value is node:
                for target in targets_of(parent):
                    yield from self.kept(target, kind)
            case ast.NamedExpr(value=value, target=target):
                if value is node:
                    yield from self.kept(target, kind)
                yield from self.leaks(parent, kind)
            case ast.Dict(values=values) if node in values:
                yield from self.leaks(parent, self._by_key(parent, kind))
            case ast.DictComp(value=value) if value is node:
                yield from self.leaks(parent, self._by_key(parent, kind))
            case ast.Return() | ast.Yield() | ast.YieldFrom():
                yield from self._returned(parent, kind)
            case ast.Tuple(elts=elements):
                yield from self._in_tuple(elements.index(node), parent, kind)
            case _ if self._is_kept_by(node, parent, kind):
                yield from self.leaks(parent, kind)

    def _by_key(self, table: ast.Dict | ast.DictComp, kind: Kind) -> Kind:
        """What a dictionary of such values is."""
        if kind is not Kind.PARAMETER:
            return kind
        is_named = isinstance(table, ast.DictComp) and isinstance(table.key, ast.Name)
        if is_named:
            return Kind.BY_NAME
        return Kind.OWN

    def _is_kept_by(self, node: ast.expr, parent: ast.AST, kind: Kind) -> bool:
        """Whether an expression is its operand, or holds it."""
        if isinstance(parent, ast.IfExp):
            return node is not parent.test
        if isinstance(parent, ast.BinOp):
            return isinstance(parent.op, ast.Add) and kind not in ONE_MODULE
        if isinstance(parent, COMPREHENSIONS):
            return parent.elt is node
        return isinstance(parent, ast.Starred | ast.Await | ast.List)

    def _in_tuple(self, place: int, parts: ast.Tuple, kind: Kind) -> Iterator[Leak]:
        """What takes a tuple apart again, and the pairs that a list is made of."""
        around = self.file.parents[parts]
        if isinstance(around, COMPREHENSIONS) and kind is Kind.PARAMETER and place == 1:
            yield from self.leaks(around, Kind.NAMED)
        users = [around]
        if isinstance(around, ast.Return):
            users = [self.file.parents[call] for call in calls_around(self.file, around)]
        elif isinstance(around, ast.For | ast.comprehension):
            yield from self.leaks(parts, kind)  # one after the other
        for user in users:
            target = None
            if isinstance(user, ast.Assign):
                target = user.targets[0]
            if isinstance(target, ast.Tuple) and place < len(target.elts):
                yield from self.kept(target.elts[place], kind)

    def _returned(self, statement: ast.AST, kind: Kind) -> Iterator[Leak]:
        """What a function gives to the calls of it in the same file."""
        if isinstance(statement, ast.Yield) and kind is Kind.PARAMETER:
            kind = Kind.PARAMETERS
        for call in calls_around(self.file, statement):
            yield from self.leaks(call, kind)

    def kept(self, target: ast.expr, kind: Kind | None) -> Iterator[Leak]:
        """What is done with a variable, or with an attribute of the class around."""
        if isinstance(target, ast.Subscript):
            if kind is Kind.PARAMETER and isinstance(target.slice, ast.Name):
                kind = Kind.BY_NAME
            elif kind is Kind.PARAMETER:
                kind = Kind.OWN
            elif kind is Kind.PARAMETERS:
                kind = Kind.LISTS
            target = target.value
        for read in self.reads(target):
            if not _is_stored_into(self.file.parents[read], read):
                yield from self.leaks(read, kind)

    def reads(self, target: ast.expr) -> Iterator[ast.expr]:
        """Where a variable is read, or an attribute of `self` in its class."""
        if isinstance(target, ast.Name):
            yield from self.file.reads(target)
        elif is_own(target):
            cls = self.file.enclosing_class(target)
            for read in self.file.attributes.get(last_name(target), ()):
                if is_own(read) and isinstance(read.ctx, ast.Load):
                    if self.file.enclosing_class(read) is cls:
                        yield read

    def bound(self, target: ast.expr, kind: Kind, loop: ast.AST | None = None) -> Iterator[Leak]:
        """What a loop does with its variables."""
        parts = ITEMS[kind]
        if isinstance(target, ast.Tuple) and len(target.elts) == len(parts) > 1:
            pairs = [*zip(target.elts, parts, strict=True)]
        else:
            pairs = [(target, ITEM.get(kind))]
        for part, part_kind in pairs:
            if not isinstance(part, ast.Name):
                continue
            for read in self.file.reads(part):
                cleaned = part_kind is Kind.NAME and is_clean(self.context, read)
                if self._is_in_loop(read, target) and not cleaned:
                    yield from self.leaks(read, part_kind)

    def _is_in_loop(self, read: ast.Name, target: ast.expr) -> bool:
        """Whether a read is in the loop whose target this is: a name may be that of several loops."""
        loop = self.file.parents[target]
        while isinstance(loop, ast.Tuple):
            loop = self.file.parents[loop]
        region = loop
        if isinstance(loop, ast.comprehension):
            region = self.file.parents[loop]
        return region in self.file.ancestors(read)

    def bound_by(self, function: ast.Lambda, kind: Kind) -> Iterator[Leak]:
        """What a lambda does with its last argument."""
        names = [each.arg for each in function.args.args]
        if not names:
            return
        for read in ast.walk(function.body):
            if isinstance(read, ast.Name) and read.id == names[-1]:
                yield from self.leaks(read, ITEM.get(kind))

    def into(self, node: ast.expr, call: ast.Call, kind: Kind) -> Iterator[Leak]:
        """What functions of the same file do with an argument; those of others read what they are given."""
        made = functions(self.context, call.func)
        for function in made:
            for argument in (
                *function.args.posonlyargs,
                *function.args.args,
                *function.args.kwonlyargs,
            ):
                if given(call, function, argument.arg) is node:
                    yield from self.argument(argument, kind)
            taken = len(function.args.args) - is_method(function)
            if function.args.vararg is not None and node in call.args[taken:]:
                yield from self.argument(function.args.vararg, SEVERAL.get(kind, kind))
        if made or self.context.program.definition(call.func, self.file) is not None:
            return
        # A method of an object is unknown, and most of them keep what they are given.
        is_function = self._is_known(call.func) or bool(self.context.dotted(call.func))
        if is_function and kind in {Kind.PARAMETERS, Kind.PARAMETER}:
            if not self._is_without_values(call):
                yield Leak(call, "value")
        elif is_function and kind is Kind.NAME and not _only_shows(last_name(call.func)):
            yield Leak(call, "name")

    def _is_known(self, name: ast.expr) -> bool:
        """Whether a name is no object that a function is given."""
        bindings = self.file.bindings(name)
        return isinstance(name, ast.Name) and not any_is(bindings, Parameter)

    def argument(self, argument: ast.arg, kind: Kind | None) -> Iterator[Leak]:
        """What a function does with an argument."""
        for read in self.file.loads.get(argument.arg, ()):
            bindings = self.file.bindings(read)
            if is_parameter(bindings, argument):
                yield from self.leaks(read, kind)

    def _is_without_values(self, call: ast.Call) -> bool:
        """Whether a function of torch works on each element, or moves tensors."""
        of_torch = any_below(self.context.dotted(call.func), "torch.")
        return of_torch and last_name(call.func) in words.ELEMENTWISE | words.ASKED

    def is_optimizers(self, call: ast.Call) -> bool:
        """Whether a call makes an optimizer, or groups for one."""
        text = self.context.source(call.func)
        if has_any(text, words.OF_OPTIMIZERS):
            return self.context.program.definition(call.func, self.file) is None
        root = root_of(call.func)
        return any(".optim." in path for path in self.context.dotted(root or call.func))


def functions(context: Context, name: ast.expr) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions of the same file that a name can mean, methods by theirs."""
    made = context.program.definition(name, context.file)
    if made is not None:
        if made.file is not context.file:
            return []
        if not isinstance(made.node, ast.ClassDef):
            return [made.node]
        return _made_by(made.node)
    if not isinstance(name, ast.Attribute) or context.dotted(name):
        return []
    if name.attr.startswith("__"):  # `super().__init__(params)` of another class
        return []
    return [
        each
        for each in context.file.of(ast.FunctionDef)
        if each.name == name.attr and is_method(each)
    ]


def _made_by(cls: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """What is called with the arguments for an object of a class."""
    return [
        each for each in cls.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"
    ]


def _only_shows(function: str) -> bool:
    """Whether a function is Python's own, prints and logs by its name, or takes FSDP1's prefixes off."""
    known = words.SHOWING + words.CLEANING
    return hasattr(builtins, function) or has_any(function.lower(), known)


def is_own(target: ast.AST) -> bool:
    """`self.parameters_to_train`."""
    return isinstance(target, ast.Attribute) and is_name(target.value, "self")


def _is_stored_into(parent: ast.AST, read: ast.expr) -> bool:
    """`groups[key] = value`: it puts something in, and takes nothing."""
    return (
        isinstance(parent, ast.Subscript)
        and isinstance(parent.ctx, ast.Store)
        and parent.value is read
    )


Uses = Callable[[Flow, ast.expr, ast.AST, Kind], Iterator[Leak]]
"""The uses of a value at a place that may mean something else."""
