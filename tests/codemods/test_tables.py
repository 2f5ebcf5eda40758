"""The tables that translations are read from: FSDP1's names are torch's, and each value is what torch calls it."""

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from fsdp_migrate.codemods.assumptions import words
from fsdp_migrate.codemods.constructor import options, rows, sharding
from fsdp_migrate.codemods.constructor.construction import SIGNATURE
from fsdp_migrate.codemods.constructor.rows import ROWS
from fsdp_migrate.codemods.imports import WITHOUT_EFFECT
from fsdp_migrate.codemods.uses import scaler, state_dicts
from fsdp_migrate.facts import names
from fsdp_migrate.runtime import units

from .programs import analysed

THEIRS = {
    module: import_module(names.TORCH + module) for module in (*names.MODULES, "._wrap_utils")
}


def test_every_name_is_torchs() -> None:
    unknown = {n for n in names.NAMES if not any(hasattr(each, n) for each in THEIRS.values())}
    assert unknown == {"default_auto_wrap_policy"}  # torch 1's
    assert {n for n in names.FSDP2_NAMES if not hasattr(THEIRS[""], n)} <= {
        "DataParallelMeshDims"
    }  # 2.12


def test_what_a_model_of_fully_shard_has_not_is_known() -> None:
    model = {*dir(THEIRS[""].FSDPModule), *dir(THEIRS[""].FullyShardedDataParallel.__base__)}
    theirs = {n for n in dir(THEIRS[""].FullyShardedDataParallel) if not n.startswith("_")}
    assert theirs - model
    assert theirs - model <= {*words.ASKED, *words.REPLACED}


def test_every_public_name_of_torch_is_known() -> None:
    public = {name for each in THEIRS.values() for name in getattr(each, "__all__", ())}
    assert public
    assert public <= names.NAMES | names.FSDP2_NAMES
    for module, theirs in THEIRS.items():
        for name in names.NAMES & set(vars(theirs)) - ({"wrap"} if not module else set()):
            assert names.fsdp1_name(f"{names.TORCH}{module}.{name}") == name
            assert names.fsdp1_name(f"{names.RUNTIME}{module}.{name}") == name
    assert names.fsdp1_name(f"{names.TORCH}.wrap") is None
    assert names.fsdp1_name(
        f"{names.TORCH}.wrap._module_wrap_policy"
    )  # private, and imported all the same


@pytest.mark.parametrize(
    ("path", "private"),
    [
        ("", False),
        ("._flat_param", True),
        ("._flat_param.FlatParamHandle", True),
        (".FlatParameter", True),
        (".unknown", False),
        ("._fully_shard", False),
        ("._fully_shard._fsdp_param.FSDPParam", False),
        ("._common_utils", False),
        ("._common_utils._FSDPState", True),
        (".api", False),
        (".api._private", True),
        (".api.FSDPModule", False),
        (".api.Unknown", True),
        (".api.unknown", False),
        (".wrap._recursive_wrap", True),
        (".wrap.ModuleWrapPolicy", False),
        (".fully_sharded_data_parallel._is_fsdp_flattened", True),
        (".fully_sharded_data_parallel.FullyShardedDataParallel._unshard", False),
        (".sharded_grad_scaler._refresh", True),
    ],
)
def test_what_is_private_to_fsdp1(path: str, private: bool) -> None:
    assert names.is_private(names.TORCH + path) is private
    assert names.is_private(f"another{path}") is False


def test_arguments_are_those_of_fsdp1() -> None:
    signature = inspect.signature(getattr(THEIRS[""], names.CLASS)).parameters
    assert tuple(signature) == SIGNATURE
    assert {"module", *ROWS} == set(SIGNATURE)


def test_arguments_without_effect_are_known_to_all_that_leave_them_out() -> None:
    assert {name for name, row in ROWS.items() if row.write is rows._no_effect} == {*WITHOUT_EFFECT}
    of_scaler = set(inspect.signature(THEIRS[".sharded_grad_scaler"].ShardedGradScaler).parameters)
    assert of_scaler - {"process_group"} == scaler._SAME
    fields = inspect.signature(THEIRS[""].MixedPrecision).parameters
    assert list(options.FIELDS) == list(fields)
    assert [*options.FIELDS.values()][:-1] == [each.default for each in fields.values()][:-1]
    assert set(sharding._STRATEGIES) == set(THEIRS[""].ShardingStrategy.__members__)


def test_the_runtime_takes_fsdp1s_arguments() -> None:
    assert tuple(inspect.signature(units).parameters) == SIGNATURE


def test_functions_of_optimizers_exist() -> None:
    """A name that nothing has would be one that is misspelt."""
    theirs = getattr(THEIRS[""], names.CLASS)
    listed = {n for n in vars(theirs) if "optim_state_dict" in n and not n.startswith("_")}
    assert set(names.OPTIMIZER_STATES) == listed
    assert set(state_dicts._OF_OPTIMIZERS) <= listed


HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
DICTIONARIES = {
    "a display": 'FSDP(m, **{"limit_all_gathers": True})\n',
    "the right of two": 'o = other | {"limit_all_gathers": True}\nFSDP(m, **o)\n',
    "a key that is stored": 'o = {}\no["limit_all_gathers"] = True\nFSDP(m, **o)\n',
    "an update by keyword": "o = {}\no.update(limit_all_gathers=True)\nFSDP(m, **o)\n",
    "an attribute": """\
class A:
    def __init__(self):
        self.o = {"limit_all_gathers": True}

    def wrap(self, m):
        return FSDP(m, **self.o)
""",
}
OTHERS = {
    "another name": 'o = {}\nother = {"limit_all_gathers": True}\nFSDP(m, **o)\n',
    "an update that is handed on": "o = {}\nf(o.update, limit_all_gathers=True)\nFSDP(m, **o)\n",
    "a key that is computed": "o = {}\no[limit_all_gathers] = True\nFSDP(m, **o)\n",
    "a choice": 'FSDP(m, **(a or {"limit_all_gathers": True}))\n',
    "another object": """\
class A:
    o = {"limit_all_gathers": True}

    def wrap(self, m, other):
        return FSDP(m, **other.o)
""",
}


@pytest.mark.parametrize("name", [*DICTIONARIES, *OTHERS])
def test_keys_of_a_dictionary_that_is_unpacked(name: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, HEAD + {**DICTIONARIES, **OTHERS}[name], form="bridge")
    said = {finding.construct.partition("=")[0] for finding in program.findings}
    assert ("limit_all_gathers" in said) == (name in DICTIONARIES)


STRATEGY = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

{lines}

def main():
    model = FSDP(nn.Linear(2, 2), sharding_strategy=strategy)
    model(1)
"""
ZERO2 = "strategy = ShardingStrategy.SHARD_GRAD_OP"
NAMED = {
    "by itself": (ZERO2, True),
    "of another scope": (f"{ZERO2}\ndef f(strategy):\n    print(strategy)", True),
    "that something else reads": (f"{ZERO2}\nprint(strategy)", False),
    "of two": (f"other = {ZERO2}", False),
    "that is unpacked": ("strategy, other = ShardingStrategy.SHARD_GRAD_OP, 1", False),
    "that shares its line": (f"{ZERO2}; other = 1", False),
    "that another file imports": (ZERO2, False),
}


@pytest.mark.parametrize("name", NAMED)
def test_a_name_of_a_strategy(name: str, tmp_path: Path) -> None:
    lines, goes = NAMED[name]
    files = {"train.py": STRATEGY.format(lines=lines), "other.py": "import os\n"}
    if name == "that another file imports":
        files["other.py"] = "from train import strategy\nprint(strategy)\n"
    after = analysed(tmp_path, files).after["train.py"]
    assert (lines.splitlines()[0] not in after.splitlines()) == goes
    assert "reshard_after_forward=False" in after
    assert goes or "import ShardingStrategy" in after  # the assignment that stays has its name
