"""Seeds that go by the rank, before a model that nothing broadcasts."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import set_seed


def shard(net, config):
    return FSDP(net, device_id=0{options})


def main(args):
"""
DRAWN = "    model = build(args)\n    model = FSDP(model{options})\n"


def seeds(folder: Path, body: str, options: str = "") -> set[str]:
    code = (HEAD + body).replace("{options}", options)
    return analysed(folder, code).codes("SEED")


@pytest.mark.parametrize(
    "seed",
    [
        "torch.manual_seed(args.seed + args.rank)  # SEED",
        "torch.manual_seed(args.seed * dist.get_world_size() + dist.get_rank())  # SEED",
        "seed = args.seed + dist.get_rank()\n    torch.manual_seed(seed)  # SEED",
        "rank = dist.get_rank()\n    set_seed(7 + rank)  # SEED",
        "args.seed += dist.get_rank()\n    torch.manual_seed(args.seed)  # SEED",
    ],
)
def test_each_rank_draws_its_own_first_weights(seed: str, tmp_path: Path) -> None:
    assert seeds(tmp_path, f"    {seed}\n{DRAWN}") == {"FSDP522"}


def test_a_function_of_the_program_shards(tmp_path: Path) -> None:
    body = "    set_seed(dist.get_rank())  # SEED\n    net = build(args)\n    model = shard(net, args)\n"
    assert seeds(tmp_path, body) == {"FSDP522"}


def test_a_model_that_is_made_where_it_is_sharded(tmp_path: Path) -> None:
    body = "    set_seed(dist.get_rank())  # SEED\n    model = FSDP(build(args), device_id=0)\n"
    assert seeds(tmp_path, body) == {"FSDP522"}


def test_a_function_of_the_program_seeds(tmp_path: Path) -> None:
    seed = "    begin(1)\n"
    begin = "\n\ndef begin(base):\n    torch.manual_seed(base + dist.get_rank())  # SEED\n"
    assert seeds(tmp_path, f"{seed}{DRAWN}{begin}") == {"FSDP522"}
    assert seeds(tmp_path, f"{DRAWN}{seed}{begin}") == set()
    given = begin.replace("base", "base, rank").replace("dist.get_rank()", "rank")
    assert seeds(tmp_path, f"    begin(1, 0)\n{DRAWN}{given}") == set()
    assert seeds(tmp_path, f"    begin(1, dist.get_rank())\n{DRAWN}{given}") == {"FSDP522"}
    assert seeds(tmp_path, f"{seed}    torch.manual_seed(0)\n{DRAWN}{begin}") == set()


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (f"    torch.manual_seed(args.seed)  # SEED\n{DRAWN}", ""),
        (f"    torch.manual_seed(args.rank)  # SEED\n{DRAWN}", ", sync_module_states=True"),
        (f"    torch.manual_seed(args.rank)  # SEED\n    torch.manual_seed(0)\n{DRAWN}", ""),
        (f"{DRAWN}    torch.manual_seed(args.rank)  # SEED\n", ""),
        ("    model = build(args)\n    set_seed(args.rank)  # SEED\n    model = FSDP(model)\n", ""),
        (
            "    generator = torch.Generator()\n"
            f"    generator.manual_seed(args.rank)  # SEED\n{DRAWN}",
            "",
        ),
    ],
)
def test_weights_that_are_alike_or_broadcast_are_left_alone(
    body: str, options: str, tmp_path: Path
) -> None:
    assert seeds(tmp_path, body, options) == set()
