"""When an option is one of some members of an enum: a condition in the shape of the expression that chooses it.

`A if wide else B` is `wide`, `{"full": A, "sdp": B}[mode]` is `mode == "sdp"`, `Strategy[name]` is `name == "B"`. What else
chooses a member is compared with torch's own enum.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import key_of
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.nodes import all_are, is_none
from fsdp_migrate.facts.scopes import Assigned

# A condition as source, or its value where it is certain.
Condition = str | bool
# The strategies that keep parameters gathered after forward, and those with a mesh of two dimensions.
KEEPING = ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2")
HYBRID = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


@dataclass(frozen=True)
class Choice:
    """An expression that gives a member of `ShardingStrategy`, or None for FSDP1's default.

    Attributes:
        enum: how the file names the enum at the constructor.
        source: the expression as source, to compare with where it has no better shape.
        is_name: whether the expression becomes the member's name, as a string.
    """

    construction: Construction
    value: ast.expr
    enum: str
    source: str
    is_name: bool = False

    def is_among(self, members: Collection[str]) -> Condition:
        """The condition that the value is one of some members."""
        return self._test(self.value, frozenset(members))

    @property
    def is_shown(self) -> bool:
        """Whether the files show every member that the value can be."""
        conditions = (
            self.is_among(("NO_SHARD",)),
            self.is_among(("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")),
        )
        nodes = [node for node in ast.walk(self.value) if isinstance(node, ast.expr)]
        every = [node for node in nodes if self._member(node) is not None]
        return bool(every) or self._possible(self.value) is not None or False in conditions

    def is_asked_for(self, member: str, test: ast.expr) -> bool:
        """Whether a test compares the value with a member: `strategy == Strategy.A`, `name == "A"` for `Strategy[name]`."""
        text = self.construction.text
        match test:
            case ast.Compare(
                left=left, ops=[ast.Eq() | ast.Is()], comparators=[ast.Attribute() as right]
            ):
                return self._member(right) == member and text(left) == text(self.value)
            case ast.Compare(left=left, ops=[ast.Eq()], comparators=[ast.Constant(value=name)]):
                context = self.construction.context
                key = key_of(context.program, context.file, self.value)
                return name == member and key is not None and text(left) == text(key)
            case ast.BoolOp(op=ast.And(), values=parts):
                return any(self.is_asked_for(member, part) for part in parts)
        return False

    def _test(self, node: ast.expr, members: frozenset[str]) -> Condition:
        member = self._member(node)
        if member is not None:
            return member in members
        match node:
            case ast.IfExp():
                test = self.construction.text(node.test)
                return chosen(
                    test, self._test(node.body, members), self._test(node.orelse, members)
                )
            case ast.Subscript(value=ast.Dict() as table, slice=key):
                return self._of_table(table, key, members)
            case ast.Subscript(value=enum, slice=key) if self._is_enum(enum):
                return compared(self.construction.text(key), _quoted(members))
            case ast.Call(func=ast.Name(id="getattr"), args=[enum, key]) if self._is_enum(enum):
                return compared(self.construction.text(key), _quoted(members))
            case ast.Name():
                shown = self.construction.shown_or_none(node)
                if shown is not None and shown is not node:
                    return self._test(shown, members)
            case ast.Subscript(value=ast.Name() as name, slice=key):
                shown = self.construction.shown_or_none(name)
                if isinstance(shown, ast.Dict):
                    return self._of_table(shown, key, members)
        return self._compared(node, members)

    def _of_table(self, table: ast.Dict, key: ast.expr, members: frozenset[str]) -> Condition:
        """The keys of a table whose entries are among the members."""
        entries = [self._member(value) for value in table.values]
        keys = [self.construction.text(each) for each in table.keys if each is not None]
        if None in entries or len(keys) != len(entries):
            return self._compared(ast.Subscript(table, key), members)
        inside = [key for key, member in zip(keys, entries, strict=True) if member in members]
        if not inside or len(inside) == len(keys):
            return bool(inside)
        return compared(self.construction.text(key), inside)

    def _compared(self, node: ast.expr, members: frozenset[str]) -> Condition:
        """A comparison with the members of torch's enum that the expression can be."""
        possible = self._possible(node)
        if possible is None:
            wanted = members
        else:
            wanted = members & possible
        if not wanted:
            return False
        if possible is not None and possible <= members:
            return True
        if node is self.value:
            source = self.source
        else:
            source = self.construction.text(node)
        if self.is_name:
            return compared(source, _quoted(wanted))
        return compared(source, [f"{self.enum}.{each}" for each in in_order(wanted)], "is")

    @property
    def is_by_key(self) -> bool:
        """Whether the expression is a member of torch's enum by its name: `ShardingStrategy[name]`."""
        match self.value:
            case ast.Subscript(value=enum):
                return self._is_enum(enum)
        return False

    def _possible(self, node: ast.expr) -> frozenset[str] | None:
        """The members that an expression can be; None if the files do not show them all."""
        context = self.construction.context
        if node not in context.file.parents and node not in self.construction.candidates:
            return None
        flow = self.construction.flow(node)
        members = set()
        for end in flow.ends:
            if isinstance(end.node, ast.Constant) and end.node.value is None:
                members.add("FULL_SHARD")
            elif isinstance(end.node, ast.Attribute):
                members.add(end.node.attr)
            else:
                return None
        if flow.unknown:
            return None
        return frozenset(members)

    def _member(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and node.value is None:
            return "FULL_SHARD"
        member = self.construction.context.member(node)
        if member is not None and member[0] == "ShardingStrategy":
            return member[1]
        return None

    def _is_enum(self, node: ast.expr) -> bool:
        return self.construction.context.fsdp1(node) == "ShardingStrategy"


def is_for_hybrid_shard(choice: Choice) -> bool:
    """Whether the mesh that is given is made for HYBRID_SHARD alone, and None for any other strategy."""
    construction = choice.construction
    file = construction.context.file
    mesh = construction.value("device_mesh")
    if not isinstance(mesh, ast.Name):
        return False
    bindings = file.bindings(mesh)
    made = [each for each in bindings if isinstance(each, Assigned) and not is_none(each.value)]
    if not made or not all_are(bindings, Assigned):
        return False
    return all(_is_under_hybrid_shard(file, each.target, choice) for each in made)


def _is_under_hybrid_shard(file: File, target: ast.expr, choice: Choice) -> bool:
    """Whether something is assigned only if the strategy is HYBRID_SHARD."""
    child: ast.AST = file.statement(target)
    for parent in file.ancestors(child):
        match parent:
            case ast.If(test=test, body=body) if child in body:
                if choice.is_asked_for("HYBRID_SHARD", test):
                    return True
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return False
        child = parent
    return False


_ORDER = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")


def in_order(members: Collection[str]) -> list[str]:
    """Members in torch's order."""
    return [each for each in _ORDER if each in members]


def _quoted(members: Collection[str]) -> list[str]:
    return [f'"{each}"' for each in in_order(members)]


def compared(source: str, values: Sequence[str], single: str = "==") -> str:
    """`source == "a"`, or `source in ("a", "b")`."""
    if len(values) == 1:
        return f"{source} {single} {values[0]}"
    return f"{source} in ({', '.join(values)})"


def chosen(test: str, yes: Condition, no: Condition) -> Condition:
    """The condition `yes if test else no`."""
    if yes == no:
        return yes
    match yes, no:
        case True, False:
            return test
        case False, True:
            return negated(test)
        case True, _:
            return f"{grouped(test)} or {grouped(str(no))}"
        case False, _:
            return f"{grouped(negated(test))} and {grouped(str(no))}"
        case _, True:
            return f"{grouped(negated(test))} or {grouped(str(yes))}"
        case _, False:
            return f"{grouped(test)} and {grouped(str(yes))}"
    return f"{yes} if {test} else {no}"


def either(first: Condition, second: Condition) -> Condition:
    """The condition `first or second`."""
    if first is True or second is True:
        return True
    if first is False or second is False:
        return first or second
    return f"{grouped(first)} or {grouped(second)}"


_OPPOSITE = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}


def negated(condition: str) -> str:
    """The opposite of a condition, `key != "a"` for `key == "a"`."""
    node = ast.parse(condition.strip(), mode="eval").body
    match node:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.get_source_segment(condition.strip(), operand) or f"not {condition}"
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if (
            type(operator) in _OPPOSITE
        ):
            text = condition.strip()
            sides = ast.get_source_segment(text, left), ast.get_source_segment(text, right)
            return f"{sides[0]} {_OPPOSITE[type(operator)]} {sides[1]}"
    return f"not {grouped(condition)}"


def grouped(condition: str) -> str:
    """A condition that can stand beside `and`, `or` and `not`."""
    node = ast.parse(condition.strip(), mode="eval").body
    loose = isinstance(node, ast.BoolOp | ast.IfExp | ast.Lambda | ast.NamedExpr)
    if loose:
        return f"({condition})"
    return condition
