"""What a constructor of a model gives decides about that model, and no other word of the program."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import analysed

TEXTS = [
    "# TODO: try use_orig_params=True, DTensor, p.to_local(), ShardedGradScaler",
    '"""See use_orig_params=True, sync_module_states, fully_shard(model), DTensor."""',
    'print("use_orig_params=True, DTensor, ShardedGradScaler, set_state_dict_type(model)")',
    "# like_fsdp1(model), def clip_grad_norm_(self), fully_shard(model), p.full_tensor()",
]
# Programs with a line that a finding is on, which another word in the file must not take away.
FOUND = [
    "model = FSDP(net)\nmodel.head.requires_grad_(False)",
    "model = FSDP(net)\nhead = [p for n, p in model.named_parameters() if 'bias' in n]",
    "def norms(model):\n    {text}\n    return [p.norm() for p in model.parameters()]\nnorms(FSDP(net))",
    "model = FSDP(net)\nscaler = torch.cuda.amp.GradScaler()",
    "torch.manual_seed(dist.get_rank())\nnet = build()\nmodel = FSDP(net)",
    "model = FSDP(net)\nmodel.reset_parameters()",
    "def load(x):\n    {text}\n    return isinstance(x, ShardedTensor)\nmodel = FSDP(net)",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("code", FOUND)
def test_text_takes_no_finding_away(code: str, text: str, tmp_path: Path) -> None:
    head = (
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed._shard.sharded_tensor import ShardedTensor\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    )

    def codes_of(folder: Path, added: str) -> list[str]:
        here = f"{head}{code.replace('{text}', added)}\n{added}\n"
        files = {"train.py": here, "other.py": f"{head}{added}\n"}
        found = analysed(folder, files).findings
        by_hand = [f.code for f in found if f.action is Action.MANUAL]
        # The second one is about the comment itself.
        return sorted(each for each in by_hand if each not in ("FSDP323", "FSDP023"))

    plain = codes_of(tmp_path / "plain", "pass")
    assert plain
    assert codes_of(tmp_path / "with text", text) == plain


@pytest.mark.parametrize(
    ("first", "second", "codes"),
    [
        ("", "use_orig_params=True", {"FSDP529"}),
        ("use_orig_params=False", "use_orig_params=True", {"FSDP529"}),
        ("use_orig_params=cfg.original", "", {"FSDP529"}),
        ("**cfg.options", "use_orig_params=True", {"FSDP529"}),
        ("use_orig_params=True", "", set()),
        ("use_orig_params=True", "**cfg.options", set()),
    ],
)
def test_each_model_has_flat_parameters_or_its_own(
    first: str, second: str, codes: set[str], tmp_path: Path
) -> None:
    """The constructor of a model says so, and that of another one does not."""
    program = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        f"value = FSDP(Value(), {first})\npolicy = FSDP(Policy(), {second})\n"
        "value.head.requires_grad_(False)  # HERE\n"
    )
    found = analysed(tmp_path, program)
    assert found.codes("HERE") == codes


@pytest.mark.parametrize(
    ("first", "is_found"),
    [("", True), ("sync_module_states=True", False), ("sync_module_states=cfg.sync", True)],
)
def test_another_model_is_broadcast(first: str, is_found: bool, tmp_path: Path) -> None:
    program = (
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "torch.manual_seed(dist.get_rank())  # HERE\n"
        f"net = Value()\nvalue = FSDP(net, {first})\n"
        "policy = FSDP(load(), sync_module_states=True)\n"
    )
    assert analysed(tmp_path, program).codes("HERE") == ({"FSDP522"} if is_found else set())


@pytest.mark.parametrize(
    ("made", "is_found"),
    [
        (
            "class Own(FSDP):\n    def __init__(self, m):\n"
            "        super().__init__(m, use_orig_params=True)\nmodel = Own(net)",
            False,
        ),
        ("shard = functools.partial(FSDP, use_orig_params=True)\nmodel = shard(net)", False),
        ("shard = functools.partial(FSDP, device_id=0)\nmodel = shard(net)", True),
        ("options = {'use_orig_params': True}\nmodel = FSDP(net, **options)", False),
        ("options = {'use_orig_params': False}\nmodel = FSDP(net, **options)", True),
        ("original = True\nmodel = FSDP(net, use_orig_params=original)", False),
    ],
)
def test_where_a_constructor_gets_its_arguments(made: str, is_found: bool, tmp_path: Path) -> None:
    program = (
        "import functools\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        f"net = build()\n{made}\nfor p in model.head.parameters():\n    p.requires_grad = False  # HERE\n"
    )
    is_named = "FSDP529" in analysed(tmp_path, program).codes("HERE")
    assert is_named == is_found
