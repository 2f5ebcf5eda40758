"""What a program computes from sharded parameters and gradients as tensors: counts, shapes, norms.

Between forwards FSDP1's parameters were this rank's shards, plain tensors of one dimension. FSDP2's are DTensors of the whole
shape. Which of the two a program means is for a person to say: `local_shard` of the runtime gives the shard.
"""

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.codemods.by_hand.measured import is_torchs, measured
from fsdp_migrate.codemods.by_hand.norms_over_ranks import is_local_now
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, is_sharded, taken
from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.models_by_argument import where_flat, where_original
from fsdp_migrate.codemods.printed import is_only_printed
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, is_name, last_name, root_of
from fsdp_migrate.facts.models import INNER, Models
from fsdp_migrate.facts.nodes import constant, receiver
from fsdp_migrate.facts.parameters import PARTS, loop_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP507", "local-tensor-ops")

_COUNT = (
    "This now counts the elements of whole parameters. Under FSDP1 it counted this rank's shards: if ranks add the numbers up, "
    "the sum is now too large. Use `p.to_local().numel()` for the shard."
)
_PRINTED = (
    "This now counts the elements of whole parameters; under FSDP1 it counted this rank's shards. The program only prints "
    "the number: use `p.to_local().numel()` if it should be that of the shards."
)
_ROWS = (
    "This now selects from the whole parameter, a DTensor, and cannot be assigned to. Under FSDP1 it selected from this "
    "rank's 1-D shard: use `p.to_local()` for the shard."
)
_OTHER = (
    "This parameter is not the same object as before sharding; FSDP1 with `use_orig_params=True` kept the object. "
    "Collect both after sharding, or compare names."
)
_CHOICE = (
    "Under FSDP1 every parameter here was a 1-D shard. Under FSDP2 the shape is the real one, so this test selects other "
    "parameters: for example, weight decay starts to act on matrices. Keep the old choice with a test that "
    "does not use the shape, or accept the new one."
)
_BRANCH = (
    "Under FSDP1 this test saw 1-D shards of the parameters. Under FSDP2 it sees their real shapes, so another branch may run: "
    "check that it suits DTensors, or test `p.to_local()`."
)
_NAME = (
    "This selects parameters by their real names now. Under FSDP1 each unit had one parameter, `_flat_param`, so other "
    "parameters were selected: check that these are the ones you mean."
)
_PARTS = (
    "This returns all parameters of this part. Under FSDP1 it returned none unless the part contained a unit, so the "
    "program now trains or selects more of them: check that it should."
)
NORM = (
    "This now computes over whole parameters or gradients, and raises if a plain tensor is mixed in. Under FSDP1 it "
    "computed over this rank's shards: if the ranks add their results up, use `.to_local()` of each."
)
_FAILS = (
    "This raises for a DTensor, which sharded parameters now are. Use `p.to_local()` for this rank's shard, or "
    "`p.full_tensor()` for the whole parameter."
)
PLAIN = (
    "This creates a plain tensor of the whole shape, which raises when it is combined with a DTensor. Use "
    "`torch.zeros_like(p)` or similar."
)
_STORAGE = (
    "This storage has the size of the whole parameter on every rank, and contains no data. Use "
    "`p.to_local().untyped_storage()` for this rank's shard."
)
_NO_STORAGE = "This raises under FSDP2, because the storage of a DTensor has no address. Use `p.to_local().untyped_storage()`."
_ADDRESS = "This returns 0 for every sharded parameter, so all of them seem to be one. Call `data_ptr()` on `p.to_local()`."
_VECTOR = (
    "This returns a DTensor of the whole vector; under FSDP1 it returned this rank's shards. Use `p.to_local()` for the "
    "shards, or `p.full_tensor()` for the whole vector."
)
_RAISING = (_FAILS, _NO_STORAGE, PLAIN)

# What is compared: `p.ndim >= 2`.
SHAPES = ("ndim", "dim", "shape", "numel")
_COLLECTING = frozenset({"add", "append", "extend"})
_TESTS = frozenset({"endswith", "find", "fullmatch", "match", "search", "startswith"})
_MAKING = frozenset(
    {"torch.empty", "torch.full", "torch.normal", "torch.ones", "torch.rand", "torch.randn"}
    | {"torch.randint", "torch.zeros"}
)
# Functions that DTensors do not have.
_WHOLE_ONLY = ("allclose", "argwhere", "masked_select", "nonzero", "unique")
_FAILING = {
    "data_ptr": _ADDRESS,
    "numpy": _FAILS,
    "storage": _STORAGE,
    "tolist": _FAILS,
    "untyped_storage": _STORAGE,
}


@codemod()
def find(context: Context) -> Iterator[Found]:
    """Uses of sharded parameters as tensors."""
    for node, message in (*_asked(context), *_asked_of_whole(context), *_chosen(context)):
        severity = None
        if message in _RAISING:
            severity = Severity.RAISES
        elif message == _PRINTED:
            severity = Severity.PRINTS
        yield Found(RULE, node, Action.MANUAL, message, severity=severity)
    for node in (*measured(context), *_asked_for_none(context)):
        if is_sharded(context, node) and not is_local_now(context, node):
            yield Found(RULE, node, Action.MANUAL, NORM, shortened(_use(context, node)))
    for call in context.file.calls.get("parameters_to_vector", ()):
        if call.args and taken(context).are_parameters(call.args[0], context.file):
            yield Found(RULE, call, Action.MANUAL, _VECTOR)


def _asked(context: Context) -> Iterator[tuple[ast.expr, str]]:
    """What is asked of parameters, each with its answer."""
    if not were_whole(context):
        for attribute in _used(context, _is_counted, "numel", "nelement"):
            yield attribute, _count(context, attribute)
        for attribute in _used(context, lambda c, node: decides(c.file, node), *SHAPES):
            yield attribute, _of_shape(context, attribute)
    for attribute in _used(context, Context.call_of, *_FAILING):
        message = _FAILING[attribute.attr]
        if message == _STORAGE and _is_addressed(context, attribute):
            message = _NO_STORAGE
        yield attribute, message
    for attribute in shapes(context.file):
        if is_sharded(context, attribute.value):
            yield attribute, PLAIN


def _count(context: Context, attribute: ast.Attribute) -> str:
    """What comes of a count: it is added up over ranks, or only printed."""
    if is_only_printed(context.file, attribute):
        return _PRINTED
    return _COUNT


def _of_shape(context: Context, attribute: ast.Attribute) -> str:
    """What comes of a test of a shape: parameters are put into groups by it, or code runs for some of them."""
    file = context.file
    for around in file.ancestors(attribute):
        match around:
            case ast.comprehension() | ast.Lambda():
                return _CHOICE
            case ast.If(body=body, orelse=orelse):
                inside = {
                    last_name(c.func)
                    for s in (*body, *orelse)
                    for c in ast.walk(s)
                    if isinstance(c, ast.Call)
                }
                if not _COLLECTING.isdisjoint(inside):
                    return _CHOICE
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                break
    function = file.function(attribute)
    if function is not None and "decay" in file.source(function):
        return _CHOICE
    return _BRANCH


def _is_addressed(context: Context, attribute: ast.Attribute) -> bool:
    """`p.untyped_storage().data_ptr()`."""
    call = context.call_of(attribute)
    return call is not None and last_name(context.file.parents[call]) == "data_ptr"


def _asked_of_whole(context: Context) -> Iterator[tuple[ast.expr, str]]:
    """Calls of what DTensors do not have, and rows of parameters."""
    for name in _WHOLE_ONLY:
        for call in context.file.calls.get(name, ()):
            if isinstance(call.func, ast.Attribute):
                owner = [call.func.value]
            else:
                owner = []
            if any(is_sharded(context, each) for each in (*owner, *call.args)):
                yield call, _FAILS
    if were_whole(context):
        return
    for subscript in context.file.of(ast.Subscript):
        value = subscript.value
        if isinstance(value, ast.Name) or last_name(value) in PARTS | {"weight", "bias"}:
            if is_sharded(context, value):
                yield subscript, _ROWS


def _chosen(context: Context) -> Iterator[tuple[ast.AST, str]]:
    """By what parameters are chosen: of a model whose parameters were flat, or had kept their names."""
    if {"parameters", "named_parameters"}.isdisjoint(context.file.attributes):
        return
    original = where_original(context)
    if original is not None:
        for parameter in _sought(original):
            yield (parameter, _OTHER)
    flat = where_flat(context)
    if flat is not None:
        for call in (*_tested_by_name(flat), *_asked_of_modules(flat)):
            yield call, _NAME
        for call in _of_parts(flat):
            yield call, _PARTS


def shapes(file: File) -> Iterator[ast.Attribute]:
    """`p.shape` in `torch.zeros(p.shape)`, and `p.size()` likewise."""
    for name in ("shape", "size"):
        for attribute in file.attributes.get(name, ()):
            call = file.parents[attribute]
            if name == "size":
                call = file.parents[call]
            while isinstance(call, ast.Starred | ast.keyword):
                call = file.parents[call]
            if isinstance(call, ast.Call) and ast.unparse(call.func) in _MAKING:
                yield attribute


def _sought(context: Context) -> Iterator[ast.expr]:
    """The sharded parameters that are sought, or whose `id` is, among those of before wrapping."""
    file = context.file
    for compare in file.of(ast.Compare):
        sought = compare.left
        found = file.variable(compare.comparators[0])
        if isinstance(sought, ast.Call) and is_name(sought.func, "id") and sought.args:
            sought = sought.args[0]
        if not isinstance(compare.ops[0], ast.In | ast.NotIn) or found is None:
            continue
        values = [each.value for each in found.assigned]
        taken_before = any(_takes_of_others(context, value) for value in values)
        if taken_before and is_sharded(context, sought):
            yield sought


def _takes_of_others(context: Context, value: ast.expr) -> bool:
    """Whether an expression takes parameters of what is no sharded model."""
    for node in ast.walk(value):
        if isinstance(node, ast.Attribute) and node.attr == "parameters":
            root = root_of(node)
            if root is not None and not context.models.can_hold(root, context.file):
                return True
    return False


def _of_parts(context: Context) -> Iterator[ast.Call]:
    """`model.head.parameters()`, and the model's own: a part had only those of units in it."""
    for attribute in context.file.attributes.get("parameters", ()):
        part = attribute.value
        call = context.call_of(attribute)
        around = None
        if isinstance(part, ast.Attribute) and part.attr not in INNER:
            around = part.value
        while isinstance(around, ast.Attribute) and around.attr in INNER:
            around = around.value
        if around is not None and call is not None:
            if context.can_be_model(around) and not is_known_as_whole(context, call):
                yield call


def _tested_by_name(context: Context) -> Iterator[ast.Call]:
    """The calls of `named_parameters` on a sharded model, in loops that test the names."""
    file = context.file
    for call in _name_tests(file):
        shown = taken(context, proven=True)
        if shown.are_parameters(call, file, (1,)) and not is_known_as_whole(context, call):
            yield call


def _asked_of_modules(context: Context) -> Iterator[ast.AST]:
    """`m.parameters(recurse=False)` in a loop over the modules of a model."""
    file = context.file
    for name in ("parameters", "named_parameters"):
        for named in file.attributes.get(name, ()):
            call = file.parents[named]
            if not isinstance(named.value, ast.Name) or not isinstance(call, ast.Call):
                continue
            if all(keyword.arg != "recurse" for keyword in call.keywords):
                continue
            loop = loop_of(file, named.value)
            if loop is None:
                continue
            model = receiver(loop[1])
            if model is not None and context.can_be_model(model):
                yield call


def _name_tests(file: File) -> Iterator[ast.Call]:
    """The calls of `named_parameters` in loops that test the names."""
    for attribute in file.attributes.get("named_parameters", ()):
        call = file.parents[attribute]
        loops = [a for a in file.ancestors(call) if isinstance(a, ast.For | ast.comprehension)]
        if not loops or not isinstance(call, ast.Call):
            continue
        target = loops[0].target
        if not isinstance(target, ast.Tuple) or not isinstance(target.elts[0], ast.Name):
            continue
        region: ast.AST = loops[0]
        if isinstance(region, ast.comprehension):
            region = file.parents[region]
        names = [each for each in ast.walk(region) if is_name(each, target.elts[0].id)]
        if any(_is_tested(file, each) for each in names):
            yield call


def _is_tested(file: File, name: ast.AST) -> bool:
    """`"bias" in name`, `name.endswith("bias")`, `re.search("bias", name)`."""
    match file.parents[name]:
        case ast.Compare():
            return True
        case ast.Call(func=ast.Attribute(attr=method)) | ast.Attribute(attr=method):
            return method in _TESTS
    return False


def were_whole(context: Context) -> bool:
    """Whether each rank had whole parameters of their own shapes, as the program shows no strategy but NO_SHARD."""
    is_replicated = context.program.once(_is_replicated, context.models)
    return is_replicated and where_flat(context) is None


def _is_replicated(program: Program, models: Models) -> bool:
    calls = [call for file in program.files for call in models.constructors(file)]
    strategies = [keyword(call, "sharding_strategy", 2) for call in calls]
    return bool(calls) and all(last_name(each) == "NO_SHARD" for each in strategies)


def _used(
    context: Context, asked: Callable[[Context, ast.Attribute], object], *names: str
) -> Iterator[ast.Attribute]:
    """The uses of some attributes on sharded parameters that satisfy `asked`."""
    for name in names:
        for attribute in context.file.attributes.get(name, ()):
            if asked(context, attribute) and is_sharded(context, attribute.value):
                yield attribute


def _is_counted(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a number is asked for: neither whether there is any, nor one by which something is decided at once."""
    around = context.file.parents[context.file.parents[attribute]]
    if context.call_of(attribute) is None or isinstance(around, ast.Compare):
        return False
    is_shown = taken(context, proven=True).is_parameter(attribute.value, context.file)
    return is_shown or _reduces_over_ranks(context, attribute)


def decides(file: File, attribute: ast.Attribute) -> bool:
    """`p.ndim >= 2`, `p.dim() < 2`, `len(p.shape) == 1`, `p.numel() > 4096`."""
    parent = file.parents[attribute]
    called = isinstance(parent, ast.Call) and ast.unparse(parent.func)
    wanted = {"ndim": False, "shape": "len"}.get(attribute.attr, ast.unparse(attribute))
    around = parent
    if called:
        around = file.parents[parent]
    is_test = isinstance(around, ast.Compare) and constant(around.comparators[0]) != 0
    return called == wanted and is_test


def _asked_for_none(context: Context) -> Iterator[ast.expr]:
    """The parameters that `p.numel() > 0` or `p.shape.numel() > 0` tests for a shard on this rank."""
    for attribute in context.file.attributes.get("numel", ()):
        around = context.file.parents[context.file.parents[attribute]]
        if isinstance(around, ast.Compare) and constant(around.comparators[0]) == 0:
            value = attribute.value
            if isinstance(value, ast.Attribute) and value.attr == "shape":
                value = value.value
            yield value


def _use(context: Context, node: ast.expr) -> str:
    around = context.file.parents[node]
    if isinstance(around, ast.Attribute):
        return context.source(around)
    return context.source(node)


def _reduces_over_ranks(context: Context, node: ast.AST) -> bool:
    """Whether the function around a node adds something up over ranks, or multiplies the node by their number."""
    function = context.file.function(node)
    for around in context.file.ancestors(node):
        if isinstance(around, ast.BinOp) and "world_size" in context.source(around):
            return True
    for name, calls in context.file.calls.items():
        if "reduce" not in name:
            continue
        for call in calls:
            if context.file.function(call) is function and is_torchs(context, call.func):
                return True
    return False
