"""Statements around the constructor: which optimizers move, which stay where they are and are remapped, which hold the file."""

from __future__ import annotations

import pytest

from fsdp_migrate.findings import Action

from .test_examples import analyse

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr)\n"
TRAINABLE = (
    "optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr)\n"
)
WRAP = "model = FSDP(model, use_orig_params=True)\n"

MOVED = {
    "a device between": f"{SGD}model = model.cuda()\nprint('wrapping')\n{WRAP}",
    "both branches": (
        f"if adam:\n    optimizer = torch.optim.Adam(model.parameters())\nelse:\n    {SGD}{WRAP}"
    ),
    "told apart by id": (
        "ids = {id(p) for p in model.head.parameters()}\n"
        f"optimizer = torch.optim.SGD([p for p in model.parameters() if id(p) not in ids])\n{WRAP}"
    ),
    "a group more": f"{SGD}optimizer.add_param_group({{'params': other.parameters()}})\n{WRAP}",
    "two models": (
        "optimizer = torch.optim.SGD([*model.parameters(), *b.parameters()], lr)\n"
        f"{WRAP}b = FSDP(b, use_orig_params=True)\n"
    ),
}
REMAPPED = {
    "a number that changes": f"{SGD}lr = lr * 2\n{WRAP}",
    "an object that may change": (
        f"optimizer = torch.optim.SGD(model.parameters(), args.lr)\nargs.scale()\n{WRAP}"
    ),
    "frozen in a loop": f"{TRAINABLE}for p in model.parameters():\n    p.requires_grad = False\n{WRAP}",
    "frozen by a method": f"{TRAINABLE}model.requires_grad_(False)\n{WRAP}",
    "a weight set anew": f"{SGD}model.head = None\n{WRAP}",
    "a function of the program": f"def change():\n    model.head = None\n{SGD}change()\n{WRAP}",
    "ids from elsewhere": (
        "def f(model, ids):\n"
        "    optimizer = torch.optim.SGD([p for p in model.parameters() if id(p) not in ids])\n"
        f"    {WRAP}    return optimizer\n"
    ),
    "a way out between": f"def f(model):\n    {SGD}    if off:\n        return optimizer\n    {WRAP}",
    "only some runs shard": f"{SGD}if sharded:\n    {WRAP}",
    "the result is returned": f"def f(model):\n    {SGD}    return FSDP(model), optimizer\n",
}
HELD = {
    "on one line": f"{SGD.strip()}; {WRAP}",
    "an element of a list": (
        "optimizer = torch.optim.SGD(models[0].parameters(), lr)\nmodels[0] = FSDP(models[0])\n"
    ),
    "a list in an attribute": (
        "class T:\n    def f(self):\n        self.all = list(self.model.parameters())\n"
        "        self.change()\n        self.model = FSDP(self.model)\n"
    ),
}


def outcome(program: str) -> tuple[set[Action], str | None]:
    """What rule 501 says of a program, and what becomes of it."""
    report, after = analyse(HEAD + program)
    actions = {finding.action for finding in report.findings if finding.code == "FSDP501"}
    return actions, after if report.changes else None


@pytest.mark.parametrize("program", [pytest.param(p, id=name) for name, p in MOVED.items()])
def test_moves_behind_the_constructor(program: str) -> None:
    actions, after = outcome(program)
    assert actions == {Action.REWRITE}
    assert after is not None
    assert "remap_optimizer" not in after
    assert after.rindex("fully_shard(") < after.index("optimizer =")


@pytest.mark.parametrize("program", [pytest.param(p, id=name) for name, p in REMAPPED.items()])
def test_is_given_the_sharded_parameters(program: str) -> None:
    actions, after = outcome(program)
    assert actions == {Action.RUNTIME}
    assert after is not None
    assert after.index("optimizer =") < after.index("with remap_optimizer(optimizer, model):")


@pytest.mark.parametrize("program", [pytest.param(p, id=name) for name, p in HELD.items()])
def test_holds_the_model(program: str) -> None:
    actions, after = outcome(program)
    assert actions == {Action.MANUAL}
    assert after is None


def test_lines_comments_and_line_ends_go_along() -> None:
    program = (
        "def f(model):\n\tlr = 1\n\n\t# all of it\n\toptimizer = torch.optim.SGD(\n\t\tmodel.parameters(),  # all\n"
        "\t\tlr,\n\t)\n\tmodel = FSDP(model, use_orig_params=True)\n\n\treturn model, optimizer\n"
    ).replace("\n", "\r\n")
    _, after = outcome(program)
    assert after is not None
    assert after.endswith(
        "\tlr = 1\r\n\r\n\tfully_shard(model)\r\n\t# all of it\r\n\toptimizer = torch.optim.SGD(\r\n"
        "\t\tmodel.parameters(),  # all\r\n\t\tlr,\r\n\t)\r\n\r\n\treturn model, optimizer\r\n"
    )
