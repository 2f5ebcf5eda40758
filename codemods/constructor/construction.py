"""One call that makes units of FSDP1: how it is spelled, and its arguments by FSDP1's signature."""

import ast
import re
from dataclasses import replace
from itertools import chain

from fsdp_migrate.codemods.constructor.flow import Flow, flow_of
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.dictionaries import Argument, given_keys, is_whole
from fsdp_migrate.codemods.edit.text import Refused, spliced
from fsdp_migrate.codemods.imports import is_pure
from fsdp_migrate.codemods.rule import Edit, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import CLASS, RUNTIME
from fsdp_migrate.facts.nodes import all_are, any_below, calls_around, has_star, is_none
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.scopes import Assigned, Binding, Imported, Opaque
from fsdp_migrate.findings import Severity

# FullyShardedDataParallel.__init__, the same from torch 2.2 to 2.15.
SIGNATURE = tuple(
    """module process_group sharding_strategy cpu_offload auto_wrap_policy backward_prefetch mixed_precision ignored_modules
    param_init_fn device_id sync_module_states forward_prefetch limit_all_gathers use_orig_params ignored_states
    device_mesh""".split()  # noqa: SIM905
)
# Spellings of torch 1.11 and of torch 2.0.
FORMER_NAMES = {"fsdp_auto_wrap_policy": "auto_wrap_policy", "ignored_parameters": "ignored_states"}

# What a program says that runs on a CPU, too.
ON_CPU = re.compile(r"""gloo|is_available\(\) else|else ["']cpu["']|device\(["']cpu["']\)""")
# What makes units, as findings name it.
DIRECT = "FSDP(...)"
SUBCLASS = "a subclass of FSDP"
PARTIAL = "partial(FSDP, ...)"
ENABLE_WRAP = "wrapper_cls=FSDP"
WRAP = "wrap(...)"
# Methods and attributes of a model that a rule for uses replaces.
_REPLACED = ("clip_grad_norm_", "module", "no_sync")
# A loop of the default form, which torch's form reads as a constructor.
UNITS = "units(...)"

CONSTRUCTOR = Rule("FSDP002", "fsdp1-constructor", Severity.RAISES)
ASSUMPTION = Rule("FSDP003", "assumption")
UNPACKED = Rule("FSDP004", "dynamic-constructor")
UNKNOWN = Rule("FSDP019", "unknown-argument", Severity.RAISES)


class AtRunTime(Exception):
    """An argument whose value only a run knows, or which only the runtime gives FSDP2; the message is for users."""


class Construction:
    """A call that makes units, or says how `wrap` and a `partial` make them.

    Attributes:
        call: the call.
        kind: DIRECT, SUBCLASS, PARTIAL, ENABLE_WRAP, WRAP or UNITS.
        arguments: its arguments, in the order of the source; a dictionary may give one several times.
        unknown: keywords that FSDP1 does not have.
        unseen: dictionaries that are unpacked, whose keys are not known.
        candidates: for an argument that is read from a dictionary which changes (`options.get("key")`), what it can be.
    """

    def __init__(self, context: Context, call: ast.Call, kind: str) -> None:
        self.context = context
        self.call = call
        self.kind = kind
        self.arguments: list[Argument] = []
        self.unknown: list[ast.keyword] = []
        self.unseen: list[ast.keyword] = []
        self.candidates: dict[ast.expr, list[ast.expr]] = {}
        self._codes: dict[ast.expr, str] = {}
        self._bind()

    def _bind(self) -> None:
        names = SIGNATURE
        if self.kind in (SUBCLASS, ENABLE_WRAP):
            names = ()
        given = self.call.args
        if self.kind == PARTIAL:
            given = self.call.args[1:]
        for name, value in zip(names, given, strict=False):
            if isinstance(value, ast.Starred):
                break  # how many it gives is not known
            self.arguments.append(Argument(name, value, value))
        for each in self.call.keywords:
            if each.arg is None:
                self._unpack(each)
            else:
                name = FORMER_NAMES.get(each.arg, each.arg)
                if name in SIGNATURE:
                    self.arguments.append(Argument(name, each.value, each))
                elif self.kind in (DIRECT, PARTIAL):
                    self.unknown.append(each)

    def _unpack(self, keyword: ast.keyword) -> None:
        """The entries of a dictionary; those of one that changes are read from it when it is complete."""
        keys = given_keys(self.context, keyword.value)
        if not keys or not is_whole(self.context, keyword.value):
            self.unseen.append(keyword)
        own = {*ast.walk(self._written(keyword.value))}
        by_name: dict[str, list[Argument]] = {}
        for key in keys:
            by_name.setdefault(FORMER_NAMES.get(key.name, key.name), []).append(key)
        for name, found in by_name.items():
            if name not in SIGNATURE:
                continue
            value = found[0].value
            is_alone = len(found) == 1 and value in own
            if is_alone and is_pure(self.context, value) and self.is_same(value):
                self.arguments.append(replace(found[0], name=name))
                continue
            former = found[0].name
            source = self.context.source(keyword.value)
            values = [each.value for each in found]
            code = f'{source}["{former}"]'
            if own.isdisjoint(values):  # it may be missing
                code = f'{source}.get("{former}")'
                values.append(ast.Constant(None))
            read = ast.parse(code, mode="eval").body
            self._codes[read] = code
            self.candidates[read] = values
            self.arguments.append(Argument(name, read, found[0].node))

    def _written(self, dictionary: ast.expr) -> ast.expr:
        """A dictionary, or the only one that a variable has."""
        if isinstance(dictionary, ast.Name):
            variable = self.context.file.variable(dictionary)
            if variable is not None and len(variable.assigned) == 1:
                return variable.assigned[0].value
        return dictionary

    @property
    def like_fsdp1(self) -> bool:
        """Whether it keeps FSDP1's quirks, as the default form does."""
        return self.context.form == "auto"

    @property
    def keeps_attributes(self) -> str:
        """Whether attributes of parameters stayed under FSDP1, as source: its flat parameters lacked those of the model's."""
        value = self.value("use_orig_params")
        if value is None:
            return str(bool(self.unseen) or self.kind == WRAP)  # whose are those of `enable_wrap`
        constant = self.constant(value)
        if constant is ...:
            return self.text(value)
        return str(bool(constant))

    @property
    def has_older_optimizer(self) -> bool:
        """Whether one of torch's optimizers, of no sharded model, is made above this call, or above a call of its function."""
        context = self.context
        file = context.file
        by_name = file.attributes
        reads = [*by_name.get("parameters", ()), *by_name.get("named_parameters", ())]
        for read in reads:
            for place in (self.call, *calls_around(file, self.call)):
                is_above = read.lineno < place.lineno
                is_beside = file.function(read) is file.function(place)
                if not is_above or not is_beside or context.can_be_model(read.value):
                    continue
                around = [each for each in file.ancestors(read) if isinstance(each, ast.Call)]
                paths = chain.from_iterable(context.dotted(each.func) for each in around)
                if any_below(paths, "torch.optim."):
                    return True
        return False

    @property
    def is_written_out(self) -> bool:
        """Whether the file shows the name of every argument: no star gives any, and no dictionary whose keys are not known."""
        starred = has_star(self.call)
        return not starred and not self.unseen

    def value(self, name: str) -> ast.expr | None:
        """The expression given for an argument; None if it is left out, or the literal None."""
        for argument in self.arguments:
            if argument.name == name:
                if self.is_none(argument.value):
                    return None
                return argument.value
        return None

    def is_none(self, value: ast.expr) -> bool:
        """Whether an expression is certainly None."""
        return self.constant(value) is None

    @property
    def has_mesh(self) -> bool:
        """Whether the call says which ranks shard, by a mesh or by groups."""
        return [self.value("device_mesh"), self.value("process_group")] != [None, None]

    def can_be_none(self, value: ast.expr) -> bool:
        """Whether one of the expressions that can make a value is None."""
        ends = [end.node for end in self.flow(value).ends]
        return any(map(is_none, ends))

    def constant(self, value: ast.expr) -> object:
        """The value of an expression that is a literal, directly or behind a name; `...` for any other."""
        made = self.context.value(value)
        if made is not None and isinstance(made.node, ast.Constant):
            return made.node.value
        return ...

    def member(self, value: ast.expr, owner: str) -> str | None:
        """The member of an FSDP1 enum that an expression is: `NO_SHARD` for `ShardingStrategy.NO_SHARD`."""
        made = self.context.value(value)
        if made is None or not isinstance(made.node, ast.Attribute):
            return None
        found = self.context.program.fsdp1(made.node.value, made.file)
        if found == owner:
            return made.node.attr
        return None

    def shown(self, value: ast.expr) -> ast.expr:
        """The expression that gives an argument its value, if its code at the constructor has the same one.

        Raises:
            AtRunTime: if it has not, or another file gives the value.
        """
        context = self.context
        file = self.context.file
        made = context.value(value)
        if made is None or made.file is not file:
            raise AtRunTime
        if made.node is not value:
            is_kept = is_pure(context, made.node) and self.is_same(made.node)
            if self.has_attributes_read(value) or not is_kept:
                raise AtRunTime
        return made.node

    def has_attributes_read(self, value: ast.expr) -> bool:
        """Whether something else than the object itself is read of a variable: a method may change the object."""
        file = self.context.file
        if isinstance(value, ast.Name):
            reads = file.reads(value)
        else:
            reads = []
        return any(isinstance(file.parents[read], ast.Attribute) for read in reads)

    def shown_or_none(self, value: ast.expr) -> ast.expr | None:
        """As `shown`, but None where the code at the constructor does not have that expression's value."""
        try:
            return self.shown(value)
        except AtRunTime:
            return None

    def text(self, node: ast.expr) -> str:
        """An expression as source, in parentheses if it takes several lines and stands in none."""
        if node not in self.context.file.parents:
            return self._codes.get(node) or ast.unparse(node)
        source = self._translated(node) or self.context.source(node)
        is_closed = isinstance(node, ast.Call | ast.Dict | ast.List | ast.Set | ast.Tuple)
        is_open = "\n" in source and not is_closed
        if is_open or isinstance(node, ast.NamedExpr):
            return f"({source})"
        return source

    def _translated(self, node: ast.expr) -> str:
        """The source of an argument in which torch's form replaces a method of another model; "" if it replaces none."""
        context = self.context
        if context.form != "torch" or context.ask is None:
            return ""
        attributes = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        if attributes.isdisjoint(_REPLACED):
            return ""
        start, end = context.file.span(node)
        edits: list[Edit] = []
        for found in context.ask(context, lambda name: name == "uses.methods"):
            try:
                if found.edits is not None:
                    own = found.edits()
                else:
                    own = ()
            except Refused:
                continue
            if own and all(start <= edit.start and edit.end <= end for edit in own):
                edits += own
        if edits:
            return spliced(context.file.text, edits, start, end)
        return ""

    def flow(self, value: ast.expr) -> Flow:
        """All that can make the value of an argument."""
        context = self.context
        if value not in self.candidates:
            return flow_of(context.program, context.file, value)
        found = Flow()
        for candidate in self.candidates[value]:
            if isinstance(candidate, ast.Constant):
                found.ends.append(Value(candidate, context.file))
                continue
            flow = flow_of(context.program, context.file, candidate)
            found.ends += flow.ends
            found.outside += flow.outside
            found.hidden |= flow.hidden
        # What a dictionary holds is read by whoever reads the dictionary.
        found.is_kept = True
        return found

    def is_same(self, value: ast.expr) -> bool:
        """Whether the names in an expression mean at the call what they mean where it is, and have one value."""
        file = self.context.file
        for name in ast.walk(value):
            if not isinstance(name, ast.Name):
                continue
            here = file.variable(name)
            there = file.variable(name, self.call)
            if (here and here.scope) is not (there and there.scope):
                return False
            if here is None:
                continue
            bindings = [each for each in here.bindings if not self._is_bound_by_itself(each)]
            if len(bindings) > 1 and not all_are(bindings, Imported):
                return False
        return True

    def _is_bound_by_itself(self, binding: Binding) -> bool:
        """Whether the constructor's statement binds a name, whose value of before it reads: `model = FSDP(model)`."""
        file = self.context.file
        if not isinstance(binding, Assigned):
            return False
        return file.statement(binding.target) is file.statement(self.call)

    def is_unchanged(self, value: ast.expr) -> bool:
        """Whether the names in an expression of the same function have at the call the values that they have where it is."""
        file = self.context.file
        if file.function(value) is not file.function(self.call):
            return False
        for name in ast.walk(value):
            if not isinstance(name, ast.Name):
                continue
            variable = file.variable(name)
            there = file.variable(name, self.call)
            if variable is None or there is None or variable.scope is not there.scope:
                return False
            if variable.scope is file.scope and file.function(value) is not None:
                continue
            targets = [each.target for each in variable.assigned]
            others = [each for each in variable.bindings if isinstance(each, Opaque)]
            if any(others) or any(target.lineno >= value.lineno for target in targets):
                return False
        return True

    @property
    def module(self) -> ast.expr | None:
        """The module that is wrapped."""
        return next((each.value for each in self.arguments if each.name == "module"), None)


def constructions(context: Context) -> list[Construction]:
    """Every construction of a file, in the order of the source."""
    has_units = context.form == "torch" and "units" in context.file.calls
    if not (context.references or context.models.subclasses or has_units):
        return []
    found = [
        Construction(context, call, kind)
        for call in context.file.of(ast.Call)
        if (kind := _kind(context, call)) is not None
    ]
    return sorted(found, key=lambda each: (each.call.lineno, each.call.col_offset))


def _kind(context: Context, call: ast.Call) -> str | None:
    """What a call is, or None if it makes no units."""
    name = context.references.get(call.func)
    if name == CLASS:
        return DIRECT
    if name == "wrap":
        return WRAP
    if context.form == "torch" and last_name(call.func) == "units":
        if f"{RUNTIME}.units" in context.dotted(call.func):
            return UNITS
    if call.args and context.references.get(call.args[0]) == CLASS:
        if "functools.partial" in context.dotted(call.func):
            return PARTIAL
    wrapper = keyword(call, "wrapper_cls")
    if wrapper is not None and context.references.get(wrapper) == CLASS:
        return ENABLE_WRAP
    if _is_subclass(context, call):
        return SUBCLASS
    return None


def _is_subclass(context: Context, call: ast.Call) -> bool:
    """Whether a call makes an object of a subclass of FSDP1's in the program, or is `super().__init__` inside of one."""
    models = context.models
    file = context.file
    if not models.subclasses:
        return False
    is_partial = "functools.partial" in context.dotted(call.func)
    given = [call.func, *call.args[: int(is_partial)], keyword(call, "wrapper_cls")]
    if any(models.names_subclass(each, file) for each in given if each is not None):
        return True
    cls = file.enclosing_class(call)
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return cls is not None and models.is_subclass(Definition(file, cls))
    return False
