"""Tests for FSDP1's class about models that Composer wraps."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
TEST = "\n\ndef callback(state):\n    return isinstance(state.model, FSDP)\n"


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("from composer import Trainer", "manual"),
        ("from composer.core import Callback", "manual"),
        ("from composers import Trainer", "rewrite"),
        ("from composer import Trainer\n\nmodel = FSDP(build())", "rewrite"),
    ],
)
def test_the_test_is_kept_where_composer_alone_wraps(
    line: str, action: str, tmp_path: Path
) -> None:
    for form in ("auto", "torch"):
        found = analysed(tmp_path, f"{HEAD}{line}\n{TEST}", form=form).findings
        assert [f.action.value for f in found if f.code == "FSDP007"] == [action]
