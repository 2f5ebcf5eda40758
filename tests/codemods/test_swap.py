"""The swap of imports: a program binds the same names before and after, from torch's modules and from the runtime's.

Both are played by modules of a few lines. Torch's have no FSDP1 name left when the result runs, so a name that was
forgotten fails.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
from torch.distributed.fsdp import wrap

from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.facts.names import FSDP2_NAMES, MODULES, NAMES, RUNTIME, TORCH
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

BRIDGE = Options(form="bridge")


class Package(ModuleType):
    """A module that equals its counterpart in the other package."""

    @property
    def _canonical(self) -> str:
        return self.__name__.replace(RUNTIME, TORCH)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Package) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)


def packages(home: str) -> dict[str, ModuleType]:
    """torch, and FSDP1's modules in their home; FSDP2's names are always torch's."""
    made: dict[str, ModuleType] = {}
    paths = [*(TORCH + m for m in MODULES), *(home + m for m in MODULES)]
    for path in ["fsdp_migrate", "torch", "torch.distributed", *dict.fromkeys(paths)]:
        made[path] = Package(path)
        made[path].__path__ = []
        parent, _, name = path.rpartition(".")
        if parent:
            setattr(made[parent], name, made[path])
    for module in MODULES:
        for name in NAMES - ({"wrap"} if not module else set()):
            setattr(made[home + module], name, f"FSDP1's {name}")
    for name in FSDP2_NAMES:
        for package in (TORCH, home):  # the runtime passes on FSDP2's names
            setattr(made[package], name, f"FSDP2's {name}")
    made["torch"].__version__ = "2.13.0"  # type: ignore[attr-defined]
    made["torch"].nn = "torch's nn"  # type: ignore[attr-defined]
    return made


def bound(text: str, home: str) -> dict[str, Any]:
    """What a program's names are bound to once it has run; the packages that its imports bind by the way aside."""
    names: dict[str, Any] = {}
    with mock.patch.dict(sys.modules, packages(home)):
        exec(compile(text, "<program>", "exec", dont_inherit=True), names)
    ignored = {"__builtins__", "torch", "fsdp_migrate"}
    return {
        name: value
        for name, value in names.items()
        if name not in ignored and not callable(value) and not name.startswith("__future")
    }


def swapped(text: str | bytes) -> str:
    """The program with its imports swapped."""
    data = text if isinstance(text, bytes) else text.encode()
    source = Source(Path("/nowhere/program.py"), "program.py", data)
    report = analyse_source(source, BRIDGE)
    assert not report.errors
    return report.changes[0].after.decode(source.encoding) if report.changes else source.text


FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
FORMS = {
    "aliased to itself": "from torch.distributed.fsdp import CPUOffload as CPUOffload  # for others\n",
    "grouped with FSDP2": (
        "from torch.distributed.fsdp import (\n    CPUOffload,  # old\n    FSDPModule,  # new\n    fully_shard,\n)\n"
    ),
    "of each module": (
        "from torch.distributed.fsdp.api import ShardingStrategy\n"
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy, wrap\n"
        "from torch.distributed.fsdp.fully_sharded_data_parallel import StateDictType\n"
        "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
    ),
    "a private function that has a public home": (
        "from torch.distributed.fsdp.wrap import _or_policy, lambda_auto_wrap_policy\n"
    ),
    "try with another package": (
        f"try:\n    {FSDP}\nexcept ImportError:\n    from fairscale.nn import FullyShardedDataParallel as FSDP\n"
    ),
    "lazy": f"def f():\n    {FSDP}  # lazy\n    return FSDP\nx = f()\n",
    "in a class": f"class A:\n    {FSDP}\nx = A.FSDP\n",
    "for type checkers": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        f"    {FSDP}\ndef f(m: FSDP) -> 'FSDP': ...\n"
    ),
    "star": "from torch.distributed.fsdp import *\nx = FullyShardedDataParallel\n",
    "a module of the package": "from torch.distributed.fsdp import wrap\nx = wrap.ModuleWrapPolicy\n",
    "a module beside names": (
        "from torch.distributed.fsdp import CPUOffload, wrap, api as a\nx = wrap.ModuleWrapPolicy, a.StateDictType\n"
    ),
    "the package from its parent, aliased": "from torch.distributed import fsdp as F  # p\nx = F.wrap.wrap\n",
    "written out, through torch": (
        "import torch\nx = torch.distributed.fsdp.FullyShardedDataParallel\ny = torch.nn\n"
    ),
    "written out, through torch.distributed": (
        "import torch.distributed as dist\nx = dist.fsdp.FullyShardedDataParallel\n"
    ),
    "written out, in a name": "import torch\nF = torch.distributed.fsdp\nx = F.CPUOffload\ny = torch.nn\n",
    "written out, through another name of torch": (
        "import torch\nT = torch\nx = T.distributed.fsdp.CPUOffload\n"
        "if (d := torch.distributed):\n    y = d.fsdp.wrap.wrap\n"
    ),
    "looked up by name": (
        "import torch.distributed.fsdp as F\nfrom torch.distributed import fsdp\n"
        "x = getattr(F, 'CPUOffload'), [getattr(fsdp, name) for name in ('MixedPrecision',)]\n"
    ),
    "looked up in a module that is written out": (
        "import torch.distributed.fsdp\n"
        "x = getattr(torch.distributed.fsdp, 'CPUOffload', None), vars(torch.distributed.fsdp.wrap)['wrap']\n"
    ),
    "several imports in one": "import torch, torch.distributed.fsdp as F  # all\nx = F.CPUOffload\n",
    "a one-line suite": f"if 1: {FSDP}\nelse: FSDP = None\n",
    "two on a line": f"{FSDP}; from torch.distributed.fsdp import CPUOffload\n",
    "a backslash, some of FSDP2": (
        "from torch.distributed.fsdp import \\\n    FullyShardedDataParallel as FSDP, \\\n    fully_shard\n"
    ),
    "a backslash inside the path": "from torch.distributed \\\n    .fsdp import CPUOffload\n",
    "a star behind a backslash": "from torch.distributed \\\n    .fsdp import *\nx = CPUOffload\n",
    "spaces in a module": "import torch . distributed.fsdp as F  # a\nx = F.CPUOffload\n",
    "tabs": "def f():\n\tif 1:\n\t\tfrom torch.distributed.fsdp import CPUOffload\n\t\treturn CPUOffload\nx = f()\n",
    "a form feed": f"x = 1\n\x0c\n{FSDP}\n",
    "a form feed in front": f"x = 1\n\x0c{FSDP}\n",
    "global": f"def f():\n    global FSDP\n    {FSDP}\nf()\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in FORMS.items()])
def test_the_same_names_are_bound(text: str) -> None:
    before = bound(text, TORCH)
    after = swapped(text)
    assert bound(after, RUNTIME) == before
    assert set(comments(after)) == set(comments(text))
    assert swapped(after) == after, "a second run changes nothing"


BYTES = {
    "CRLF": f"# a\r\n{FSDP}  # b\r\nx = 1\r\n".encode(),
    "CRLF and FSDP2": b"from torch.distributed.fsdp import (\r\n    CPUOffload,  # a\r\n    fully_shard,\r\n)\r\n",
    "lone CR": f"# a\r{FSDP}  # b\rx = 1\r".encode(),
    "a byte-order mark": b"\xef\xbb\xbf" + f"{FSDP}\nx = 1\n".encode(),
    "latin-1": f"# coding: latin-1\n{FSDP}  # caf\xe9\n".encode("latin-1"),
    "no final newline": FSDP.encode(),
    "no final newline, both": b"from torch.distributed.fsdp import CPUOffload, fully_shard",
    "mixed endings": f"x = 1\r\n{FSDP}\ny = 2\r\n".encode(),
    "wide characters": f"é = '日本語 \U0001f600'; {FSDP}\n".encode(),
}


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in BYTES.items()])
def test_a_file_keeps_its_form(data: bytes) -> None:
    source = Source(Path("/nowhere/program.py"), "program.py", data)
    report = analyse_source(source, BRIDGE)
    assert not report.errors
    after = report.changes[0].after
    if b"fully_shard" not in data:  # one path is exchanged, and every other byte stays
        assert after == data.replace(TORCH.encode(), RUNTIME.encode())
    assert bound(after.decode(source.encoding), RUNTIME) == bound(source.text, TORCH)
    for mark in (b"\xef\xbb\xbf", b"\r\n"):
        assert (mark in after) == (mark in data)
    assert after.endswith((b"\n", b"\r")) == data.endswith((b"\n", b"\r"))


LEFT = {
    "FSDP2": "from torch.distributed.fsdp import FSDPModule, fully_shard\nfully_shard(model)\n",
    "FSDP2's names, asked for": (
        "import torch.distributed.fsdp as F\nx = getattr(F, 'fully_shard', None)\ny = hasattr(F, 'CPUOffload')\n"
    ),
    "FSDP2 from the package": "from torch.distributed import fsdp\nfsdp.fully_shard(model)\n",
    "fairscale": "from fairscale.nn import FullyShardedDataParallel as FSDP\nFSDP(model)\n",
    "Lightning": "from lightning.pytorch.strategies import FSDPStrategy\n",
    "a class of its own": "# torch.distributed.fsdp\nclass FSDP: ...\nFSDP()\n",
    "a parameter": "def f(FSDP, model):  # fsdp\n    return FSDP(model)\n",
    "text": '"""from torch.distributed.fsdp import FullyShardedDataParallel."""\n',
    "a relative import": "from .torch.distributed.fsdp import FullyShardedDataParallel\n",
    "FSDP2's name, patched": (
        "import torch.distributed.fsdp\ntorch.distributed.fsdp.fully_shard = spy\n"
        "with mock.patch('torch.distributed.fsdp.fully_shard'):\n    build()\n"
    ),
    "a path as text": "name.startswith('torch.distributed.fsdp')\n",
    "the runtime": "from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP\nFSDP(model)\n",
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in LEFT.items()])
def test_what_is_not_fsdp1_of_torch_stays(text: str) -> None:
    assert swapped(text) == text


@pytest.mark.parametrize("module", MODULES)
def test_the_runtime_has_what_torch_has(module: str) -> None:
    theirs, ours = import_module(TORCH + module), import_module(RUNTIME + module)
    wanted = {name for name in NAMES | FSDP2_NAMES if hasattr(theirs, name)}
    assert wanted, "torch has moved its names"
    assert {name for name in wanted if not hasattr(ours, name)} == set()
    policies = {n for n in NAMES if hasattr(wrap, n)}  # torch's own: they make no FSDP1
    same = {n for n in wanted & NAMES if getattr(ours, n) is getattr(theirs, n)}
    assert same == {n for n in wanted & policies if not isinstance(getattr(theirs, n), ModuleType)}


def test_names_that_other_files_import_stay(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .sharding import FSDP, wrap_it\n",
        "pkg/sharding.py": f"{FSDP}\nfrom torch.distributed.fsdp import CPUOffload\n\n\ndef wrap_it(m):\n    return FSDP(m)\n",
        "pkg/star.py": "from .sharding import *\n\nfsdp_offload = CPUOffload\n",
        "train.py": "import pkg\n\nmodel = pkg.FSDP(model)\nprint(isinstance(model, pkg.FSDP))\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report = analyse([tmp_path / name for name in files], BRIDGE)
    assert not report.errors
    (change,) = report.changes
    assert change.path.name == "sharding.py"
    assert change.after.decode() == files["pkg/sharding.py"].replace(TORCH, RUNTIME)
    places = {(Path(finding.path).name, finding.line) for finding in report.findings}
    assert places >= {("sharding.py", 1), ("sharding.py", 2), ("sharding.py", 6), ("star.py", 3)}
    assert places >= {("train.py", 3), ("train.py", 4)}


SAVING = f"""\
{FSDP}
from torch.distributed.fsdp import StateDictType


def save(model):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return model.state_dict()
"""


@pytest.mark.parametrize(
    ("reader", "stays"),
    [
        ("import pkg.saving as saving\nsaving.save(FSDP)", False),
        ("import pkg.saving as s\ns.save(FSDP)", False),
        ("from pkg import saving as s\ns.save(FSDP)", False),
        ("import pkg.saving as s\ns.save(s.FSDP)", True),
        ("from pkg import saving as s\ns.save(s . FSDP)", True),
        ("import pkg.saving as s\nname = 'FSDP'\ngetattr(s, name)", True),
        ("import pkg.saving as s\nnames = vars(s)\nnames['FSDP']", True),
        ("import pkg.saving as s\nkept = s\nkept.FSDP", True),
    ],
)
def test_a_module_under_another_name(reader: str, stays: bool, tmp_path: Path) -> None:
    """What else its importer says of FSDP is not about the module's names, where it does no more than read some of them."""
    files = {"pkg/__init__.py": "", "pkg/saving.py": SAVING, "train.py": f"{FSDP}\n{reader}\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    report = analyse([tmp_path / name for name in files], Options(form="torch"))
    (change,) = [each for each in report.changes if each.path.name == "saving.py"]
    assert (FSDP in change.after.decode()) is stays


@pytest.mark.parametrize(
    ("line", "stays"), [("print(FSDP)", True), ("x = 1  # as FSDP does", False)]
)
def test_a_comment_reads_no_name(line: str, stays: bool, tmp_path: Path) -> None:
    files = {"saving.py": SAVING, "train.py": f"from saving import *\n{line}\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    report = analyse([tmp_path / name for name in files], Options(form="torch"))
    (change,) = [each for each in report.changes if each.path.name == "saving.py"]
    assert (FSDP in change.after.decode()) is stays


IMPORTS = "from torch.distributed.fsdp import (\n    CPUOffload,\n    ShardingStrategy,\n)\n"
USE = "strategy = ShardingStrategy.FULL_SHARD\n"


def test_a_module_that_binds_torch_stays() -> None:
    text = f"import torch.distributed.fsdp\n{IMPORTS}\n{USE}print(CPUOffload, torch.nn)\n"
    assert in_auto_form(text).startswith("import torch.distributed.fsdp\n")


def test_a_name_that_was_never_used_stays(tmp_path: Path) -> None:
    """Other files may have it from here, which are not asked about: a hook names single files."""
    (tmp_path / "options.py").write_text(IMPORTS + USE)
    (change,) = analyse([tmp_path / "options.py"]).changes
    assert change.after.startswith(b"from fsdp_migrate.runtime import (\n    CPUOffload,\n")


def test_a_name_of_fsdp1_that_came_from_the_program_goes_with_its_use(tmp_path: Path) -> None:
    (tmp_path / "fsdp_parts.py").write_text(
        "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
    )
    (tmp_path / "main.py").write_text(
        "import torch\nfrom fsdp_parts import ShardedGradScaler\n\nscaler = ShardedGradScaler()\n"
    )
    report = analyse([tmp_path / "main.py", tmp_path / "fsdp_parts.py"])
    (change,) = [each for each in report.changes if each.path.name == "main.py"]
    assert change.after == b"import torch\n\nscaler = torch.amp.GradScaler()\n"


def test_an_import_without_a_use_stays_if_new_code_reads_it() -> None:
    text = (
        "from settings import settings\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
        "model = FSDP(model, sharding_strategy=settings.sharding_strategy)\n"
    )
    source = Source(Path("/nowhere/program.py"), "program.py", text.encode())
    after = analyse_source(source, Options(form="torch")).changes[0].after.decode()
    assert "ShardingStrategy.NO_SHARD" in after
    assert "from torch.distributed.fsdp import ShardingStrategy, fully_shard\n" in after


def in_auto_form(text: str) -> str:
    report = analyse_source(Source(Path("/nowhere/program.py"), "program.py", text.encode()))
    assert not report.errors
    return report.changes[0].after.decode()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import torch.distributed.fsdp as f\n\nf.StateDictType\n", "import torch.distributed.fsdp"),
        ("from torch.distributed.fsdp import StateDictType\n", "torch.distributed.fsdp: StateDictType"),
    ],
)  # fmt: skip
def test_a_finding_names_an_import_as_it_is_written(text: str, named: str) -> None:
    report = analyse_source(Source(Path("/nowhere/x.py"), "x.py", text.encode()), BRIDGE)
    assert report.findings[0].construct == named


HEAD = "import torch.distributed\nfrom lightning.fabric.strategies import FSDPStrategy as S\n"
OURS = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as F, MixedPrecision, CPUOffload\n"
)
STAYING = {
    "a variable": (OURS + "mp = MixedPrecision()\nS(mixed_precision=mp)\n", "MixedPrecision"),
    "options": (OURS + "o = {}\no['x'] = CPUOffload(True)\nS(**o)\nMixedPrecision\n", "CPUOffload"),
    "a class of the program, and a parameter": (
        OURS + "class Mine(S): ...\ndef f(x):\n    return Mine(cpu=x)\nf(CPUOffload())\n",
        "CPUOffload",
    ),
    "its constructor": (
        OURS + "class Mine(S):\n    def __init__(self):\n        self.c = CPUOffload()\n"
        "        super().__init__(self.c)\n",
        "CPUOffload",
    ),
    "a function": (
        OURS + "def options(n):\n    return MixedPrecision()\nS(options(1))\n",
        "MixedPrecision",
    ),
    "written out": ("S(torch.distributed.fsdp.CPUOffload(True))\n", "CPUOffload"),
    "a module": ("import torch.distributed.fsdp as f\nS(f.wrap.ModuleWrapPolicy(x))\n", "ModuleWrapPolicy"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "name"), STAYING.values(), ids=STAYING)
def test_what_another_library_hands_to_fsdp1_stays_torchs(text: str, name: str) -> None:
    """Lightning's strategy does not know the runtime's classes; the model of the program itself is migrated."""
    source = Source(Path("/nowhere/x.py"), "x.py", (HEAD + text + "F = F(model)\n").encode())
    for form in ("auto", "bridge"):
        report = analyse_source(source, Options(form=form))
        said = [f for f in report.findings if "uses FSDP1 itself" in f.message]
        assert [(f.construct, f.action.value) for f in said] == [(name, "manual")]
        after = report.changes[0].after.decode() if report.changes else source.text
        theirs = [line for line in after.splitlines() if "torch.distributed.fsdp" in line]
        assert any(name in line or " as f" in line for line in theirs)
        assert f"fsdp_migrate.runtime import {name}" not in after


def test_it_stays_across_files_and_a_module_with_other_uses_is_by_hand(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(OURS + "mp = MixedPrecision()\n")
    use = "from options import mp\nimport torch.distributed.fsdp as f\nS(mp, f.CPUOffload())\nf.wrap.wrap(x)\n"
    (tmp_path / "main.py").write_text(HEAD + use)
    report = analyse(sorted(tmp_path.glob("*.py")), BRIDGE)
    said = {f.construct: f.message for f in report.findings if f.action is Action.MANUAL}
    assert "which uses FSDP1 itself" in said["MixedPrecision"]
    assert "Import it from `torch.distributed.fsdp`" in said["f.CPUOffload"]


def test_accelerate_asks_for_torchs_own_policy() -> None:
    text = (
        "from accelerate import FullyShardedDataParallelPlugin\n"
        "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n"
        "FullyShardedDataParallelPlugin(auto_wrap_policy=transformer_auto_wrap_policy)\n"
    )
    report = analyse_source(Source(Path("/nowhere/x.py"), "x.py", text.encode()))
    assert [f.action for f in report.findings if f.code == "FSDP001"] == [Action.RUNTIME]
    after = report.changes[0].after.decode() if report.changes else text
    assert "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n" in after
