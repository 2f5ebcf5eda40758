"""A migration in two steps: the checkpoint code first, while the models are still FSDP1's, then the rest.

The functions of `torch.distributed.checkpoint.state_dict` take models of both versions and write the same files, so the
first step can be merged and run on its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fsdp_migrate.codemods import checkpoints, imports, names
from fsdp_migrate.codemods.rule import Draft
from fsdp_migrate.findings import Action

_CODES = frozenset(rule.code for module in checkpoints.MODULES for rule in module.RULES)


def of_checkpoints(drafts: Iterable[Draft]) -> list[Draft]:
    """What the first step has to say: the edits that FSDP1 models bear, and what else there is of checkpoints.

    Nothing in it is silent, and nothing gets a mark: what stays goes on working as it is.
    """
    return [
        _of_first_step(draft) for draft in drafts if draft.rule.code in _CODES or _is_spent(draft)
    ]


def _is_spent(draft: Draft) -> bool:
    """Whether a name goes with the checkpoint code that it was for."""
    return draft.rule in (imports.RULE, names.OPTION) and draft.action is Action.REWRITE


def _of_first_step(draft: Draft) -> Draft:
    if draft.on_fsdp1 or _is_spent(draft):
        return draft
    message = draft.message
    if draft.action is not Action.MANUAL:
        message = f"stays for --stage full; then: {message}"
    return replace(
        draft,
        action=Action.MANUAL,
        message=message,
        silent=False,
        edits=(),
        places=(),
        needs=(),
        gone=(),
        mark=False,
    )
