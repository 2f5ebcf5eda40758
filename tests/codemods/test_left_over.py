"""Imports that nothing uses after the edits, in torch's form."""

from pathlib import Path

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.settings import Options

from .programs import analysed

UNUSED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision{comment}

model = FSDP(torch.nn.Linear(8, 8)){use}
"""


@pytest.mark.parametrize(
    ("comment", "use", "other", "goes"),
    [
        ("", "", "", True),
        ("  # noqa: F401", "", "", False),
        ("  # for mixed precision", "", "", True),
        ("  # re-exported", "", "", False),
        ("", "\nprint(MixedPrecision)", "", False),
        ("", "\n__all__ = ['MixedPrecision']", "", False),
        ("", "", "from train import MixedPrecision", False),
    ],
)
def test_an_import_of_fsdp1_that_nothing_read(
    comment: str, use: str, other: str, goes: bool, tmp_path: Path
) -> None:
    files = {"train.py": UNUSED.format(comment=comment, use=use), "other.py": f"{other}\n"}
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert ("MixedPrecision" not in after) is goes


@pytest.mark.parametrize(
    ("main", "goes"),
    [
        ("import policies\nfrom torch.distributed.fsdp import CPUOffload\n", True),
        ("import policies\nfrom torch.distributed.fsdp import (\n    CPUOffload,\n)\n", True),
        ("import other\n\nprint(other.CPUOffload)\n", True),
        ("import policies\n# CPUOffload\n", True),
        ("import policies\n\nprint(policies.CPUOffload)\n", False),
        ("from policies import CPUOffload\n", False),
        ("from policies import *\n\nprint(CPUOffload)\n", False),
        ("import policies\n\nprint(getattr(policies, 'CPUOffload'))\n", False),
        (
            "from importlib import import_module\n\nprint(import_module('policies').CPUOffload)",
            False,
        ),
    ],
)
def test_a_package_hands_on_all_names_of_its_modules(main: str, goes: bool, tmp_path: Path) -> None:
    files = {
        "policies/__init__.py": "from .sizes import *\n",
        "policies/sizes.py": """\
            from torch.distributed.fsdp import (
                FullyShardedDataParallel as FSDP,
                CPUOffload,
            )

            def build(model):
                return FSDP(model)
            """,
        "other.py": "class CPUOffload:\n    pass\n",
        "main.py": main,
    }
    after = analysed(tmp_path, files, "torch").after["policies/sizes.py"]
    assert ("CPUOffload" not in after) is goes


def test_a_file_without_other_changes_keeps_it(tmp_path: Path) -> None:
    text = "from torch.distributed.fsdp import MixedPrecision\n"
    assert analysed(tmp_path, text, "torch").after["train.py"] == text


def test_a_name_is_imported_where_it_is_used(tmp_path: Path) -> None:
    """A policy that another file makes needs no import beside the constructor."""
    files = {
        "policies.py": """\
            import torch
            from torch.distributed.fsdp import MixedPrecision

            def policy():
                return MixedPrecision(param_dtype=torch.bfloat16)
            """,
        "train.py": """\
            import torch
            from policies import policy
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            mixed = policy()
            model = FSDP(torch.nn.Linear(8, 8), mixed_precision=mixed)
            """,
    }
    after = analysed(tmp_path, files, "torch").after["train.py"]
    imported = after.partition("mixed =")[0]
    assert ("MixedPrecisionPolicy" in imported) is (
        "MixedPrecisionPolicy" in after[len(imported) :]
    )


def test_an_import_of_torchs_stands_below_the_standard_library(tmp_path: Path) -> None:
    text = """\
        from contextlib import nullcontext
        from itertools import repeat

        import torch
        from torch import nn


        def step(model, contexts):
            assert isinstance(model, torch.distributed.fsdp.FullyShardedDataParallel)
            return [model.no_sync for _ in contexts] + [nullcontext]


        model = torch.distributed.fsdp.FullyShardedDataParallel(nn.Linear(8, 8))
        step(model, repeat(1, 2))
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.index("from torch.distributed.fsdp import") > after.index("import torch\n")


FLAGS = {
    "train.py": """\
        import torch
        from config import parse
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


        @torch.no_grad()
        def shard(model, lora=False, prefetch="PRE"):
            return FSDP(
                model,
                use_orig_params=lora,
                limit_all_gathers=args.fsdp_limit,
                backward_prefetch=BackwardPrefetch[args.fsdp_prefetch],
            )


        args = parse()
        model = shard(torch.nn.Linear(8, 8), lora=True)
        """,
    "config.py": """\
        from argparse import ArgumentParser

        def parse():
            parser = ArgumentParser()
            parser.add_argument("--fsdp-limit")
            parser.add_argument("--fsdp_prefetch")
            return parser.parse_args()
        """,
}
CHAIN = {
    "train.py": """\
        from config import Flags, Settings
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


        def shard(model, settings):
            return FSDP(model, backward_prefetch=BackwardPrefetch[settings.prefetch])


        flags = Flags()
        shard(model, Settings(prefetch=flags.prefetch))
        """,
    "config.py": """\
        class Flags:
            prefetch: str = "BACKWARD_PRE"


        class Settings:
            def __init__(self, prefetch):
                self.prefetch = prefetch
        """,
}


def test_each_place_that_defines_a_setting_is_named(tmp_path: Path) -> None:
    (found,) = [e for e in analysed(tmp_path, CHAIN, "torch").findings if e.code == "FSDP022"]
    assert "`settings.prefetch` (defined at config.py:2, config.py:7)" in found.message


def test_a_check_for_torchs_form_lists_what_the_edits_leave_behind(tmp_path: Path) -> None:
    wanted = analysed(tmp_path, FLAGS, "torch").findings
    options = Options(form="torch", only_checks=True)
    assert analyse(discover([tmp_path]), options).findings == wanted


ALL = (
    "`lora`, a parameter of `shard`, `args.fsdp_limit` (defined at config.py:5), `args.fsdp_prefetch` (defined at "
    "config.py:6) any"
)


@pytest.mark.parametrize("form", ["auto", "torch"])
def test_settings_that_nothing_reads_any_more_are_listed_once(form: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, FLAGS, form)
    (found,) = [each for each in program.findings if each.code == "FSDP022"]
    assert ALL in found.message
    assert found.construct == "lora"
    assert found.line == program.before["train.py"].split("def shard")[0].count("\n") + 1
    assert "prefetch`, a parameter" not in found.message


@pytest.mark.parametrize(
    ("more", "is_listed"),
    [
        ("other = Settings(fsdp_limit=args.fsdp_limit)", True),
        ("print(args.fsdp_limit)", False),
        ("print(config['fsdp_limit'])", False),
        ("print(getattr(args, 'fsdp_limit'))", False),
        ("args.fsdp_limit = None", True),
    ],
)
def test_a_setting_that_another_file_reads_is_not_listed(
    more: str, is_listed: bool, tmp_path: Path
) -> None:
    program = analysed(tmp_path, FLAGS | {"other.py": f"{more}\n"}, "torch")
    (found,) = [each for each in program.findings if each.code == "FSDP022"]
    assert ("args.fsdp_limit" in found.message) is is_listed
    assert "args.fsdp_prefetch" in found.message


def test_nothing_is_listed_where_the_interface_stays(tmp_path: Path) -> None:
    assert "FSDP022" not in {each.code for each in analysed(tmp_path, FLAGS, "bridge").findings}


def test_an_import_stands_beside_others_of_its_package(tmp_path: Path) -> None:
    """Not below the last import of torch, where the file is not sorted."""
    text = """\
        import torch
        import torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        import torch.nn as nn
        from torch.utils.data import DataLoader
        from torch.utils.tensorboard import SummaryWriter

        model = FSDP(nn.Linear(8, 8), process_group=dist.new_group([0, 1]))
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert (
        "import torch.distributed as dist\nfrom torch.distributed.device_mesh import DeviceMesh\n"
        "from torch.distributed.fsdp import fully_shard\n"
    ) in after


def test_the_comment_behind_a_statement_is_removed_with_it(tmp_path: Path) -> None:
    text = """\
        import torch.nn as nn
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

        # How the model is trained
        strategy = ShardingStrategy.FULL_SHARD  # for ZeRO 3
        model = FSDP(nn.Linear(8, 8), sharding_strategy=strategy)
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "ZeRO" not in after
    assert "# How the model is trained\n" in after
    assert "strategy" not in after


OWN = """\
{above}
import torch
{imported}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model, use_orig_params=where())
{below}
"""


@pytest.mark.parametrize(
    ("case", "other", "goes"),
    [
        ({"imported": "from own import where"}, "", True),
        ({"imported": "from own import (\n    where,\n    when,\n)"}, "", True),
        ({"imported": "import own; from own import where"}, "", True),
        ({"imported": "from own import where  # noqa"}, "", False),
        ({"imported": "from own import where", "below": "print(where)"}, "", False),
        ({"imported": "from own import where", "below": "# where"}, "", False),
        ({"imported": "from own import where"}, "from train import where", False),
        ({"imported": "try:\n    from own import where\nexcept ImportError:\n    pass"}, "", False),
        ({"imported": "from own import where", "above": "from past import where"}, "", False),
    ],
)
def test_an_import_of_the_programs_own(
    case: dict[str, str], other: str, goes: bool, tmp_path: Path
) -> None:
    text = OWN.format(**{"above": "", "below": "", **case})
    own = "def where():\n    return True\n\n\nwhen = 0\n"
    files = {"train.py": text, "own.py": own, "other.py": f"{other}\n"}
    after = analysed(tmp_path, files, "torch").after["train.py"]
    assert "use_orig_params" not in after
    assert ("where" not in after) is goes


@pytest.mark.parametrize(("reads", "goes"), [("shard", True), ("shard, StateDictType", False)])
def test_a_package_hands_on_what_others_read(reads: str, goes: bool, tmp_path: Path) -> None:
    files = {
        "fsdp/__init__.py": """\
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp import StateDictType


            def shard(model):
                return FSDP(model)


            def save(model):
                with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
                    return model.state_dict()
            """,
        "train.py": f"from fsdp import {reads}\n",
    }
    after = analysed(tmp_path, files, "torch").after["fsdp/__init__.py"]
    assert ("StateDictType" not in after) is goes


@pytest.mark.parametrize(
    ("other", "is_left"), [("", False), ("print(half)", True), ("__all__ = ['half']", True)]
)
def test_a_policy_that_nothing_reads_is_rewritten_beside_others(
    other: str, is_left: bool, tmp_path: Path
) -> None:
    files = {
        "policies.py": f"""\
            import torch
            from torch.distributed.fsdp import MixedPrecision

            full = MixedPrecision(param_dtype=torch.float32)
            half = MixedPrecision(param_dtype=torch.float16, buffer_dtype=torch.float16)
            {other}
            """,
        "train.py": """\
            import torch
            from policies import full
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            model = FSDP(torch.nn.Linear(8, 8), mixed_precision=full)
            """,
    }
    after = analysed(tmp_path, files, "torch").after["policies.py"]
    assert ("half = MixedPrecision(" in after) is is_left
    assert ("buffer_dtype" in after) is is_left


def test_a_setting_that_gets_another_name_is_not_without_use(tmp_path: Path) -> None:
    text = """\
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

        from model import Net


        class Trainer:
            def __init__(self, zero3):
                if zero3:
                    self.fsdp_strategy = ShardingStrategy.FULL_SHARD
                else:
                    self.fsdp_strategy = ShardingStrategy.SHARD_GRAD_OP

            def build(self):
                return FSDP(Net(), sharding_strategy=self.fsdp_strategy)


        model = Trainer(True).build()
        """
    program = analysed(tmp_path, text, "torch")
    assert "strategy" not in program.after["train.py"]
    assert "FSDP022" not in {each.code for each in program.findings}


@pytest.mark.parametrize(
    ("statement", "names", "goes"),
    [
        ('name = name.replace("_fsdp_wrapped_module.", "")', "named_parameters", True),
        ('name = name.replace("_fsdp_wrapped_module", "")', "named_modules", True),
        ('name = name.replace("_orig_mod.", "")', "named_parameters", False),
        ('other = name.replace("_fsdp_wrapped_module.", "")', "named_parameters", False),
        ('name = name.replace("_fsdp_wrapped_module.", "")', "items", False),
    ],
)
def test_the_wrappers_part_of_a_models_names(
    statement: str, names: str, goes: bool, tmp_path: Path
) -> None:
    text = f"""\
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        from model import Net


        def groups(model, found):
            for name, parameter in model.{names}():
                # To be compatible with FSDP
                {statement}

                found[name] = parameter


        model = FSDP(Net())
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert ("to be compatible" not in after.lower()) is goes
    assert (f"{names}():\n        found" in after) is goes


def test_an_if_that_goes_first_leaves_no_more_empty_lines(tmp_path: Path) -> None:
    program = """\
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def shard(model, rank):

            if rank == 0:
                fill = None
            else:
                fill = lambda m: m.to_empty(device="cuda", recurse=False)


            return FSDP(model, sync_module_states=True, param_init_fn=fill)
        """
    after = analysed(tmp_path, program, "torch").after["train.py"]
    assert "def shard(model, rank):\n\n    # Rank 0 has the values" in after


@pytest.mark.parametrize("head", ["", "# Sizes\n", '"""Sizes."""\n\n'])
def test_a_file_does_not_begin_with_an_empty_line(head: str, tmp_path: Path) -> None:
    files = {
        "sizes.py": f"{head}import functools\n\n"
        "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n\n\n"
        "def layers(block):\n"
        "    return functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={block})\n",
        "train.py": """\
            from model import Block, Net
            from sizes import layers
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

            model = FSDP(Net(), auto_wrap_policy=layers(Block))
            """,
    }
    after = analysed(tmp_path, files, "torch").after["sizes.py"]
    assert "transformer_auto_wrap_policy" not in after
    assert after.startswith(head or "def ")
    assert "\n\ndef " in after or not head


@pytest.mark.parametrize(("alias", "goes"), [("Scaler = Scaler", True), ("print(1)", False)])
def test_an_import_whose_name_the_file_assigns_again(
    alias: str, goes: bool, tmp_path: Path
) -> None:
    """What other files import is the second one."""
    files = {
        "own.py": f"""\
            import torch
            from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
            from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as Scaler

            scaler = Scaler()
            model = FSDP(torch.nn.Linear(8, 8))
            {alias}
            """,
        "train.py": "from own import Scaler\n\nprint(Scaler)\n",
    }
    after = analysed(tmp_path, files, "torch").after["own.py"]
    assert ("import ShardedGradScaler" not in after) is goes
