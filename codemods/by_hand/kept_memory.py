"""Memory of flat parameters that a program keeps while it gives them other values: `backup[name] = p.data`, `p.data = average`.

A flat parameter took the new tensor for its own and left the old one alone. The runtime copies the new values into the shards,
which are what was kept. With original parameters FSDP1's next forward copied them in the same way.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.means_the_same import APPENDING
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.by_hand.taken_out import RULE
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models_by_argument import where_flat
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action

_KEPT = (
    "This keeps the memory of a parameter, and `p.data = x` now writes into that memory; under FSDP1 it did not. Keep "
    "`p.data.clone()` instead."
)


@codemod(words=(".data",))
def find(context: Context) -> Iterator[Found]:
    """The places that keep `p.data` without a copy, in a program that assigns it elsewhere."""
    flat = where_flat(context)
    if context.form == "torch" or flat is None or not flat.models.shards(context.file):
        return  # in torch's form the assignment itself has no effect
    if not context.program.once(_assigns_data):
        return
    for attribute in context.file.attributes.get("data", ()):
        if isinstance(attribute.ctx, ast.Load) and _is_kept(context.file, attribute):
            if taken(flat, proven=True).is_parameter(attribute.value, flat.file):
                if not is_known_as_whole(flat, attribute):
                    yield Found(RULE, attribute, Action.MANUAL, _KEPT)


def _assigns_data(program: Program) -> bool:
    attributes = [each for file in program.files for each in file.attributes.get("data", ())]
    return any(isinstance(attribute.ctx, ast.Store) for attribute in attributes)


def _is_kept(file: File, data: ast.expr) -> bool:
    """Whether a value is put somewhere as it is."""
    parent = file.parents[data]
    match parent:
        case ast.Tuple():
            around = file.parents[parent]
            is_swapped = isinstance(around, ast.Assign) and around.value is parent
            return is_swapped or isinstance(around, ast.ListComp | ast.Dict)
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute(), *_]):
            return True
        case ast.ListComp(elt=element) | ast.DictComp(value=element):
            return element is data
        case ast.Dict() | ast.List():
            return True
        case ast.Call():
            return data in parent.args and last_name(parent.func) in APPENDING
    return False
