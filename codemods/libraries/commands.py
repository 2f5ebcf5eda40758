"""Commands that a Python file starts, which set FSDP1 by flags: a list of words, or a string."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration.launching import UNSURE, launches, of_words
from fsdp_migrate.codemods.libraries.settings import only_reads, project_of
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.findings import Action

_FLAGS = ("--fsdp", "--use_fsdp", "--use-fsdp")


@codemod(words=("--fsdp", "--use_fsdp", "--use-fsdp"))
def find(context: Context) -> Iterator[Found]:
    """What sets FSDP1 in the commands of a file, each once."""
    file = context.file
    project = project_of(context)
    spoken: set[ast.AST] = set()
    lists: list[ast.List | ast.Tuple] = [*file.of(ast.List), *file.of(ast.Tuple)]
    for listing in lists:
        words = [_word(element) for element in listing.elts]
        if not any(word.startswith(_FLAGS) for word in words) or only_reads(context, listing):
            continue
        spoken.update(listing.elts)
        for index, line in of_words(words, project):
            yield Found(line.rule, listing.elts[index], Action.MANUAL, line.message)
    for constant in file.of(ast.Constant):
        text = constant.value
        is_text = isinstance(file.parents[constant], ast.Expr)  # a docstring
        if (
            not isinstance(text, str)
            or constant in spoken
            or is_text
            or only_reads(context, constant)
        ):
            continue
        if any(f"{flag} " in text for flag in _FLAGS):
            said = {line.message: line for line in launches(text, project)}
            for message, line in said.items():
                construct = text[line.start : line.end]
                yield Found(rules.FLAGS, constant, Action.MANUAL, message, construct)


def _word(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return UNSURE
