"""Contexts that a variable holds, and that nothing needs under FSDP2: in torch's form they go with it."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed, table

HEAD = """\
import contextlib
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sample(model, prompt, args):
"""
TAIL = """\


model = FSDP(torch.nn.Linear(8, 8))
"""
GO = table("""\
=== a lambda with a test
# As FSDP needs it to gather
cm = lambda: (FSDP.summon_full_params(model) if args.fsdp else contextlib.nullcontext())
with cm():
    out = model.generate(prompt)
return out
---
out = model.generate(prompt)
return out
=== a name used twice
cm = FSDP.summon_full_params(model)
with cm:
    out = model.generate(prompt)
cm = lambda: contextlib.nullcontext() if args.one else FSDP.summon_full_params(model)
with torch.no_grad(), cm():
    out += model.generate(prompt)
return out
---
out = model.generate(prompt)
with torch.no_grad():
    out += model.generate(prompt)
return out
=== two branches
# Writes text
if args.plugin is not None:
    cm = FSDP.summon_full_params(model)
else:
    cm = contextlib.nullcontext
with torch.no_grad():
    # one by one
    with cm:
        return model.generate(prompt)
---
# Writes text
with torch.no_grad():
    # one by one
    return model.generate(prompt)
=== a branch after nothing
cm = contextlib.nullcontext()

if isinstance(model, FSDP):
    # the head is the root's
    cm = FSDP.summon_full_params(model, recurse=False)
for each in prompt:
    with cm:
        model.generate(each)
---

for each in prompt:
    model.generate(each)
""")


@pytest.mark.parametrize("name", GO)
def test_a_context_that_does_nothing_goes(name: str, tmp_path: Path) -> None:
    before, after = GO[name]
    program = analysed(tmp_path, HEAD + _indented(before) + TAIL, "torch")
    text = program.after["train.py"]
    assert _indented(after).lstrip("\n") in text
    for word in ("contextlib", "cm", "FSDP", "gather", "head is"):
        assert word not in text.partition("def sample")[2].partition("\n\n\n")[0], word
    assert "contextlib" not in text
    assert "nullcontext" not in text


STAY = [
    "cm = FSDP.summon_full_params(model)\nprint(cm)\nwith cm:\n    model.generate(prompt)",
    "cm = FSDP.summon_full_params(model)\nwith cm as whole:\n    model.generate(prompt)",
    "cm = FSDP.summon_full_params(model)\nwith cm:\n    model.weight.zero_()",
    "cm = FSDP.summon_full_params(model)\nwith cm:\n    print(model.state_dict())",
    "cm = FSDP.summon_full_params(model) if args.load() else contextlib.nullcontext()\nwith cm:\n    model(prompt)",
    "cm = FSDP.summon_full_params(model) if args.one else torch.no_grad()\nwith cm:\n    model(prompt)",
    "cm = lambda m: FSDP.summon_full_params(model)\nwith cm(model):\n    model(prompt)",
    "if args.one:\n    cm = FSDP.summon_full_params(model)\nelse:\n    cm = torch.no_grad()\nwith cm:\n    model(prompt)",
    "if args.one:\n    cm = FSDP.summon_full_params(model)\nwith cm:\n    model(prompt)",
    "if args.one:\n    cm = FSDP.summon_full_params(model)\n    print()\nwith cm:\n    model(prompt)",
]


@pytest.mark.parametrize("code", STAY)
def test_a_context_that_may_do_something_stays(code: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, HEAD + _indented(code) + "\n" + TAIL, "torch")
    assert program.is_kept("summon_full_params")
    assert "FSDP321" in program.codes("summon_full_params")


WHOLE = "with FSDP.summon_full_params(model{}):\n    {}\n"
READS = "for name, p in model.named_parameters():\n        print(name, p.grad)"
HANDS_ON = "return dict(model.named_parameters())"
HELD = "cm = FSDP.summon_full_params(model{})\nwith cm:\n    {}\n"
STEP = "model(prompt)\n    print(args.weight.grad)"
GRADIENTS = {
    "read": WHOLE.format(", with_grads=True", READS),
    "handed on": WHOLE.format(", with_grads=args.check", HANDS_ON),
    "by position": WHOLE.format(", True, False, False, False, True", READS),
    "in a dictionary": WHOLE.format(", **args.options", HANDS_ON),
    "of a parameter that is held": WHOLE.format(", with_grads=True", STEP),
    "in a variable": HELD.format(", with_grads=True", STEP),
}
NO_GRADIENTS = {
    "left out": WHOLE.format("", HANDS_ON),
    "false": WHOLE.format(", with_grads=False", HANDS_ON),
    "of a state dict": WHOLE.format(", with_grads=True", "return model.state_dict()"),
    "of a call": WHOLE.format(", with_grads=True", "return model(prompt)"),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_whole_gradients_need_the_user(name: str, tmp_path: Path) -> None:
    """A parameter's `full_tensor()` has no gradient."""
    program = analysed(tmp_path, HEAD + _indented(GRADIENTS[name]) + TAIL, "torch")
    assert program.is_kept("summon_full_params")
    assert "whole_parameters" not in program.after["train.py"]
    found = [each for each in program.findings if each.code == "FSDP321"]
    assert [(each.action, each.severity) for each in found] == [(Action.MANUAL, Severity.SILENT)]
    assert "`p.grad.full_tensor()`" in found[0].message


@pytest.mark.parametrize("name", NO_GRADIENTS)
def test_a_block_without_gradients_is_rewritten(name: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, HEAD + _indented(NO_GRADIENTS[name]) + TAIL, "torch")
    assert "summon_full_params" not in program.after["train.py"]


def test_comments_of_a_block_that_speak_of_gathering_go(tmp_path: Path) -> None:
    code = "# Gathers for the head\nwith FSDP.summon_full_params(model):\n    # writes\n    model.generate(prompt)\n"
    program = analysed(tmp_path, HEAD + _indented(code) + TAIL, "torch")
    assert "    # writes\n    model.generate(prompt)\n" in program.after["train.py"]
    assert "Gathers" not in program.after["train.py"]


@pytest.mark.parametrize(
    "comment",
    [
        "# Normally, we compare losses.\n# The sharded model has none yet.",
        "# Compares fsdp_model with ddp_model",
    ],
)
def test_a_comment_that_speaks_of_more_than_gathering_stays(comment: str, tmp_path: Path) -> None:
    code = f"{comment}\nwith FSDP.summon_full_params(model):\n    model.generate(prompt)\n"
    after = analysed(tmp_path, HEAD + _indented(code) + TAIL, "torch").after["train.py"]
    assert _indented(f"{comment}\nmodel.generate(prompt)\n") in after


def test_comments_around_reads_stay(tmp_path: Path) -> None:
    code = """\
# Gathers to compare
with FSDP.summon_full_params(model):  # of both
    # by name
    return dict(model.named_parameters())
"""
    after = analysed(tmp_path, HEAD + _indented(code) + TAIL, "torch").after["train.py"]
    assert "summon_full_params" not in after
    for comment in ("Gathers to compare", "of both", "by name"):
        assert f"# {comment}" in after


@pytest.mark.parametrize(
    ("comment", "goes"),
    [
        ("# FSDP has its own clip_grad_norm_", True),
        (
            "# FullyShardedDataParallel.clip_grad_norm_\n    # torch.nn.utils.clip_grad_norm_(model)",
            True,
        ),
        ("# FSDP reduces before this", False),
        ("# clips", False),
    ],
)
def test_comments_above_a_clip(comment: str, goes: bool, tmp_path: Path) -> None:
    code = HEAD + f"    {comment}\n    model.clip_grad_norm_(1.0)\n" + TAIL
    text = analysed(tmp_path, code, "torch").after["train.py"]
    assert (comment not in text) is goes


def _indented(code: str) -> str:
    lines = code.splitlines(keepends=True)
    return "".join(f"    {line}" if line.strip() else line for line in lines)
