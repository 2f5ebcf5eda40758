"""First weights that each rank draws by itself, where nothing broadcasts those of one."""

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.by_hand.dtensors import RANDOM
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models_by_argument import where
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import given, is_method, last_name, values_given
from fsdp_migrate.facts.nodes import assigned_value
from fsdp_migrate.facts.scopes import Assigned
from fsdp_migrate.findings import Action

SEEDS = ("manual_seed", "manual_seed_all", "random_seed", "seed_all", "seed_everything", "set_seed")
_RANK = re.compile(r"\b(?:dp_|global_|local_)?rank\b|_rank\(|\bRANK\b")
_OWN = (
    "This seed gives each rank different initial weights, and nothing broadcasts those of one rank: the sharded model is "
    "put together from a piece of each rank's. FSDP2 takes other pieces than FSDP1, so training starts from other values "
    "now. Use one seed until the model is created, or broadcast rank 0's weights."
)


@codemod(words=("seed",))
def find(context: Context) -> Iterator[Found]:
    """Seeds that go by the rank, before a model is made that is then sharded as it is."""
    seeds = [call for name in SEEDS for call in context.file.calls.get(name, ())]
    seeds = [call for call in seeds if call.args and _is_of_all(context, call)]
    by_rank = [call for call in seeds if _goes_by_rank(context, call)]
    # A model whose first values FSDP1 broadcast is the same on all ranks.
    alone = where(context, "sync_module_states", False)
    if not by_rank or alone is None:
        return
    places = {place: seed for seed in seeds for place in _places(context, seed)}
    places |= {place: seed for seed in by_rank for place in _places(context, seed)}
    for place, seed in places.items():
        if seed in by_rank:
            if place in [_last(context, places, made) for made in _made(alone, place)]:
                yield Found(RANDOM, seed, Action.MANUAL, _OWN, f"{last_name(seed.func)}(...)")


def _places(context: Context, seed: ast.Call) -> Iterator[ast.Call]:
    """A seed, and the calls of the function that it is in."""
    yield seed
    function = context.file.function(seed)
    if function is not None and not is_method(function):
        ranks = [each.arg for each in function.args.args if _RANK.search(each.arg)]
        for call in context.file.calls.get(function.name, ()):
            values = [given(call, function, name) for name in ranks]
            if all(value and _RANK.search(context.source(value)) for value in values):
                yield call


def _is_of_all(context: Context, call: ast.Call) -> bool:
    """Whether a call seeds the default generator, not one of the program's own."""
    return isinstance(call.func, ast.Name) or bool(context.dotted(call.func))


def _goes_by_rank(context: Context, call: ast.Call) -> bool:
    """Whether a seed has the rank in it, or a variable that is given a value with the rank in it."""
    texts = []
    for passed in values_given(call):
        texts.append(context.source(passed))
        for node in ast.walk(passed):
            if isinstance(node, ast.Name):
                values = map(assigned_value, context.file.bindings(node))
                texts += [context.source(value) for value in values if value is not None]
            elif isinstance(node, ast.Attribute):
                texts += _stored(context, node)
    return any(map(_RANK.search, texts))


def _made(context: Context, seed: ast.Call) -> Iterator[ast.expr]:
    """What is given to the variables, behind a seed in its function, that a call there shards."""
    file = context.file
    function = file.function(seed)
    for statement in file.of(ast.Assign):
        sharded = statement.value
        is_behind = statement.lineno > seed.lineno and file.function(statement) is function
        if not is_behind or not isinstance(sharded, ast.Call) or not sharded.args:
            continue
        model = sharded.args[0]
        if isinstance(model, ast.Call) and context.models.is_constructor(sharded, file):
            yield model
        if isinstance(model, ast.Name) and context.can_be_model(sharded):
            for binding in file.bindings(model):
                if isinstance(binding, Assigned) and binding.value is not sharded:
                    if seed.lineno < binding.value.lineno < statement.lineno:
                        yield binding.value


def _stored(context: Context, attribute: ast.Attribute) -> list[str]:
    """What is assigned or added to `args.seed`."""
    found = []
    for store in context.file.attributes.get(attribute.attr, ()):
        statement = context.file.parents[store]
        is_same = ast.unparse(store) == ast.unparse(attribute)
        if is_same and isinstance(statement, ast.Assign | ast.AugAssign):
            found.append(context.source(statement.value))
    return found


def _last(context: Context, places: Iterable[ast.Call], made: ast.expr) -> ast.Call | None:
    """The last place where a seed is set before a value is made in the same function."""
    function = context.file.function(made)
    before = [each for each in places if context.file.function(each) is function]
    before = [each for each in before if each.lineno < made.lineno]
    return max(before, key=lambda each: each.lineno, default=None)
