"""Models of transformers that are asked for what they record by the name of their class, which `fully_shard` changes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fsdp_migrate.facts.program import External

_RECORDED = re.compile(r"\boutput_(?:hidden_states|attentions|router_logits)\b")


def finds_by_class(made: Iterable[object], texts: Iterable[str]) -> bool:
    """Whether a model may be one of transformers, and the program asks one for hidden states or the like.

    Args:
        made: what makes the model, as far as that is known.
        texts: the sources of the files that can get the model.
    """
    known = list(made)
    is_own = bool(known) and not any(each is None or isinstance(each, External) for each in known)
    return not is_own and any(_RECORDED.search(text) for text in texts)
