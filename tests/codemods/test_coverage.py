"""docs/coverage.md says what the tool does, and leaves out nothing that torch's FSDP1 has."""

from __future__ import annotations

import ast
import dataclasses
import enum
import gc
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
from click.testing import CliRunner
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_migrate.cli import cli
from fsdp_migrate.codemods.coverage import SECTIONS, Row, Section
from fsdp_migrate.codemods.registry import rule_for
from fsdp_migrate.index.names import FSDP2_NAMES, PACKAGE, is_private
from fsdp_migrate.views.coverage import coverage_page, entry

from .test_examples import analyse

PAGE = Path(__file__).parents[2] / "docs" / "coverage.md"
CLASS = "FullyShardedDataParallel"
ROWS = [
    pytest.param(section, row, id=" ".join(row.code.split()))
    for section in SECTIONS
    for row in section.rows
]


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    """If this fails: `fsdp-migrate rules --coverage docs/coverage.md`, and look at what changed."""
    made = tmp_path / "docs" / "coverage.md"
    result = CliRunner().invoke(cli, ["rules", "--coverage", str(made)])
    assert result.exit_code == 0, result.output
    assert made.read_text("utf-8") == coverage_page() == PAGE.read_text("utf-8")


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_row_is_explained_by_a_rule_or_by_itself(section: Section, row: Row) -> None:
    said = entry(section, row)
    reasons = [said.action is not None, bool(row.same), bool(row.missing)]
    assert sum(reasons) == 1, "a rule speaks of it, or it is the same, or it is missing"
    assert all(rule_for(code) is not None for code in said.codes)


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_action_is_what_happens(section: Section, row: Row) -> None:
    said = entry(section, row)
    program, line = section.program(row)
    _, after = analyse(program)
    assert analyse(after)[1] == after
    stays = (
        program.splitlines()[line - 1 :] == after.splitlines()[-program.count("\n") + line - 1 :]
    )
    by_name_alone = said.codes == ("FSDP017",)  # the import changes, the line does not
    assert stays == (not said.changes or by_name_alone)


@pytest.mark.parametrize(("section", "row"), ROWS)
def test_example_shows_the_same(section: Section, row: Row) -> None:
    said = entry(section, row)
    if said.example is not None:
        rule = rule_for(said.example[0])
        assert rule is not None
        assert rule.code in said.codes
        assert said.example[1] in [example.title for example in rule.examples]


# What torch has.


def exported() -> Iterator[str]:
    for name in ("", ".api", ".fully_sharded_data_parallel", ".wrap", ".sharded_grad_scaler"):
        module = importlib.import_module(PACKAGE + name)
        yield from getattr(module, "__all__", ())
        for attribute, value in vars(module).items():
            of_fsdp = getattr(value, "__module__", "").startswith(PACKAGE)
            if of_fsdp and not attribute.startswith("_") and not isinstance(value, ModuleType):
                yield attribute


def members_and_fields() -> Iterator[str]:
    for name in set(exported()) - FSDP2_NAMES:
        cls = getattr(torch.distributed.fsdp, name, None)
        if isinstance(cls, enum.EnumMeta):
            yield from (f"{name}.{member}" for member in cls.__members__)
        elif dataclasses.is_dataclass(cls):
            yield from (f"{name}({field.name})" for field in dataclasses.fields(cls))


def methods() -> Iterator[str]:
    for name in dir(FullyShardedDataParallel):
        if not name.startswith("_") and not hasattr(nn.Module, name):
            yield f"{CLASS}.{name}"


def overridden() -> Iterator[str]:
    for name in vars(FullyShardedDataParallel):
        if not name.startswith("_") and hasattr(nn.Module, name):
            yield f"{CLASS}.{name}"


def arguments() -> Iterator[str]:
    for name in list(inspect.signature(FullyShardedDataParallel.__init__).parameters)[2:]:
        yield f"{CLASS}({name})"


def attributes() -> Iterator[str]:
    """What every instance has, besides what every module has."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = FullyShardedDataParallel(nn.Linear(2, 2), device_id=torch.device("cpu"))
        names = vars(model).keys() - vars(nn.Module()).keys()
        yield from (f"{CLASS}.{name}" for name in names if not name.startswith("_"))
        del model
        gc.collect()  # FSDP1's model may abort the process if its group goes before it
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`")
@pytest.mark.parametrize(
    "api", [exported, members_and_fields, methods, overridden, arguments, attributes]
)
def test_nothing_of_torch_is_left_out(api: Callable[[], Iterator[str]]) -> None:
    names = set(api())
    assert names
    assert sorted(names - covered() - FSDP2_NAMES) == []


def test_private_modules_are_known_as_such() -> None:
    names = [info.name for info in pkgutil.iter_modules(torch.distributed.fsdp.__path__)]
    private = {name for name in names if name.startswith("_")} - {"_fully_shard", "_wrap_utils"}
    assert private
    assert all(is_private(f"{PACKAGE}.{name}.anything") for name in private)


# What the rows have.


def covered() -> set[str]:
    return {
        name
        for section in SECTIONS
        for row in section.rows
        for node in ast.walk(ast.parse(section.program(row)[0]))
        for name in of_torch(node)
    }


def of_torch(node: ast.AST) -> Iterator[str]:
    """The parts of FSDP1 that a piece of a program uses."""
    if isinstance(node, ast.Name):
        yield CLASS if node.id == "FSDP" else node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = CLASS if node.value.id in {"FSDP", "model"} else node.value.id
        yield f"{owner}.{node.attr}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        function = CLASS if node.func.id == "FSDP" else node.func.id
        yield from (f"{function}({keyword.arg})" for keyword in node.keywords)
