"""Functions of the program's own, for what keeps FSDP1's meaning and has no function of torch's.

Each is written into the file that uses it, above the first use, and once. There are no others than these.
"""

import ast
from collections.abc import Iterator
from textwrap import dedent

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import in_steps, insert_above, newline
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.findings import Action

NO_SYNC = '''\
@contextmanager
def no_sync(model):
    """Keeps gradients on each rank inside of the block: they are reduced by the next backward pass after it."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
'''
NO_SYNC_OR_DDP = '''\
@contextmanager
def no_sync(model):
    """Keeps gradients on each rank inside of the block: they are reduced by the next backward pass after it."""
    if not isinstance(model, FSDPModule):
        with model.no_sync():
            yield
        return
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
'''
WHOLE_PARAMETERS = '''\
def whole_parameters(model):
    """Each parameter by its name, gathered from all ranks, which must all ask for it."""
    for name, parameter in model.named_parameters():
        yield name, parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
'''
LOCAL_SHARD = '''\
def local_shard(tensor):
    """This rank's part of a sharded tensor, and any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
'''
_NEEDS = {
    "@contextmanager": Import("contextlib", "contextmanager"),
    "FSDPModule": Import(TORCH, "FSDPModule"),
    "DTensor": Import("torch.distributed.tensor", "DTensor"),
}


def name_of(code: str) -> str:
    """The name of a function."""
    return code.partition("def ")[2].partition("(")[0]


def define(context: Context, rule: Rule, code: str, at: ast.AST) -> Iterator[Found]:
    """The finding that writes a function into the file, at its first use there."""
    known = context.program.kept.setdefault("own functions", {})
    key = f"{context.file.path}:{name_of(code)}"
    if known.setdefault(key, at) is not at:
        return
    imports = tuple(need for word, need in _NEEDS.items() if word in code)
    message = f"`{name_of(code)}`, a small function, is added to this file, because torch has none that does the same."
    top = _at_top(context, at)
    yield Found(
        rule,
        at,
        Action.REWRITE,
        message,
        edits=lambda: [_above(context, top, code)],
        imports=imports,
    )


def _at_top(context: Context, node: ast.AST) -> ast.stmt:
    """The statement at the top of the file that a node is in."""
    while not isinstance(context.file.parents[node], ast.Module):
        node = context.file.parents[node]
    assert isinstance(node, ast.stmt)
    return node


def _above(context: Context, statement: ast.stmt, code: str) -> Edit:
    """A function above a statement of a file's top, with two blank lines around it."""
    file = context.file
    end = newline(context.file)
    edit = insert_above(file, statement, in_steps(file, dedent(code)), None)
    above = NEWLINE.sub("\n", file.text[: edit.start])
    missing = 0
    if above:
        missing = max(0, 3 - (len(above) - len(above.rstrip("\n"))))
    return edit._replace(text=end * missing + edit.text + end * 2)
