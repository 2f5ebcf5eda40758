"""One file of PyTorch's own tests of FSDP1 on the CPU, with one form: what `torch_suite.py` runs for each.

The file is read, not changed: what it imports of
FSDP1's public names comes from the form, what it calls CUDA is the CPU, and every other line runs as it stands. Each test
gets processes of its own, forked from this one, over gloo; they are ended when their time is over.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 imports it at first use: once here instead of once a rank
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
from torch.nn.parallel import DistributedDataParallel

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

RANKS = 2
COMMON = "torch.testing._internal.common_fsdp"
PUBLIC = (
    "torch.distributed.fsdp",
    "torch.distributed.fsdp.api",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed.fsdp.sharded_grad_scaler",
    "torch.distributed.fsdp.wrap",
)
FORMS = ("fsdp1", "bridge", "in place")
SKIPPED = "private assertions skipped"
"""What follows a form, and a comma, to leave out what :class:`WithoutPrivate` does."""
OF_THE_FORM = "_form"
"""The name by which rewritten imports find what stands in the place of FSDP1's names."""

NOT_FSDP1S = {"_local_tensor", "_version"}
"""Private names that are no parts of FSDP1."""

CPU = ast.parse('torch.device("cpu")', mode="eval").body


class WithoutPrivate(ast.NodeTransformer):
    """Assertions of private parts left out: `model._assert_state(...)`, `self.assertEqual(unit._handle.rank, 0)`."""

    def visit_Expr(self, node: ast.Expr) -> Any:
        """A statement that is a call."""
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return node
        name = call.func.attr
        asserts = name == "_assert_state" or name.startswith("assert")
        return ast.copy_location(ast.Pass(), node) if asserts and _is_private(call) else node


def _is_private(call: ast.Call) -> bool:
    attributes = [each.attr for each in ast.walk(call) if isinstance(each, ast.Attribute)]
    return any(name.startswith("_") and name not in NOT_FSDP1S for name in attributes)


class OnTheCpu(ast.NodeTransformer):
    """A file of tests with its public imports of FSDP1 from the form, and with the CPU where it has CUDA."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """`from torch.distributed.fsdp import FullyShardedDataParallel` in what the form has the name of."""
        if node.module not in PUBLIC:
            return node
        return [
            ast.copy_location(_import_of_form(node.module, alias), node) for alias in node.names
        ]

    def visit_Constant(self, node: ast.Constant) -> Any:
        """`"cuda"`, `"cuda:0"`."""
        is_cuda = isinstance(node.value, str) and node.value.partition(":")[0] == "cuda"
        return ast.copy_location(ast.Constant("cpu"), node) if is_cuda else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> Any:
        """`f"cuda:{rank}"`."""
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        """Devices by their number."""
        self.generic_visit(node)
        name = ast.unparse(node.func)
        if name == "torch.cuda.device_count":
            return ast.copy_location(ast.Constant(RANKS), node)
        if name == "torch.cuda.current_device":
            return ast.copy_location(CPU, node)
        if name == "torch.device" and ast.unparse(node.args[0]) == "'cpu'":
            return ast.copy_location(CPU, node)
        if name.endswith(".to") and node.args and _is_rank(node.args[0]):
            node.args[0] = CPU
        for keyword in node.keywords:
            if keyword.arg == "device_id" and _is_rank(keyword.value):
                keyword.value = CPU
        return node


def _import_of_form(module: str, alias: ast.alias) -> ast.stmt:
    bound = alias.asname or alias.name
    return ast.parse(f"{bound} = {OF_THE_FORM}({module!r}, {alias.name!r})").body[0]


def _is_rank(value: ast.expr) -> bool:
    return ast.unparse(value) in ("self.rank", "rank")


def load(name: str, file: Path, form: str) -> types.ModuleType:
    """The module of a file of PyTorch's, rewritten, under a name in `sys.modules`."""
    form, _, part = form.partition(", ")
    tree = OnTheCpu().visit(ast.parse(file.read_text()))
    tree = WithoutPrivate().visit(tree) if part == SKIPPED else tree
    module = types.ModuleType(name)
    module.__file__ = str(file)
    setattr(module, OF_THE_FORM, names_of(form))
    sys.modules[name] = module
    exec(compile(ast.fix_missing_locations(tree), str(file), "exec"), vars(module))
    return module


def names_of(form: str) -> Any:
    """A function of a module's name and a name in it: the form's object, or torch's, where the form has none."""
    from in_place import BRIDGE, IN_PLACE

    api = {"fsdp1": None, "bridge": BRIDGE, "in place": IN_PLACE}[form]

    def find(module: str, name: str) -> Any:
        theirs = getattr(__import__(module, fromlist=[name]), name)
        if api is None or isinstance(theirs, types.ModuleType):
            return theirs
        if name == "FullyShardedDataParallel":
            return api.FSDP
        part = module.removeprefix(PUBLIC[0]).removeprefix(".")
        return getattr(getattr(api, part) if part else api, name, theirs)

    return find


def preload() -> None:
    """Imports what every file needs: once, for the processes that are forked later."""
    _stand_in_for_expecttest()
    for name in ("common_distributed", "common_utils", "distributed._tensor.common_dtensor"):
        import_module(f"torch.testing._internal.{name}")
    for name in ("fsdp1", "in_place"):
        import_module(name)


def prepare(file: Path, form: str) -> None:
    """Makes this process one that PyTorch's tests of FSDP1 can be imported into, without a device."""
    from fsdp1 import fsdp1_on_cpu

    fsdp1_on_cpu()
    for each in (torch.Tensor, torch.nn.Module):
        each.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign,attr-defined]
    for name in ("set_device", "synchronize", "_sleep", "manual_seed", "empty_cache"):
        setattr(torch.cuda, name, lambda *args, **kwargs: None)
    make = DistributedDataParallel.__init__

    def make_on_cpu(self: Any, module: Any, *_: Any, **options: Any) -> None:
        make(self, module, **{**options, "device_ids": None, "output_device": None})

    DistributedDataParallel.__init__ = make_on_cpu  # type: ignore[method-assign]
    from torch.testing._internal import common_distributed

    def always(*_: Any, **__: Any) -> Any:
        return lambda function: function

    for name in ("skip_if_lt_x_gpu", "requires_nccl", "requires_nccl_version"):
        setattr(common_distributed, name, always)
    beside = file.parents[3] / "torch/testing/_internal/common_fsdp.py"
    if beside.exists():
        common = load(COMMON, beside, form)
        common.DEVICE_COUNT = RANKS  # type: ignore[attr-defined]


def _stand_in_for_expecttest() -> None:
    """torch's test utilities derive from its class, of which no test of FSDP1 uses more than unittest's."""
    try:
        import expecttest  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        module: Any = types.ModuleType("expecttest")
        module.TestCase = unittest.TestCase
        module.assert_expected_inline = lambda *_: None
        sys.modules["expecttest"] = module


# Running #


def tests_in(module: types.ModuleType) -> list[tuple[Any, str]]:
    """The class and the name of each test, in the file's order."""
    loader = unittest.TestLoader()
    classes = [each for each in vars(module).values() if isinstance(each, type)]
    return [
        (cls, name)
        for cls in classes
        if issubclass(cls, unittest.TestCase) and cls.__module__ == module.__name__
        for name in loader.getTestCaseNames(cls)
    ]


def run(cls: Any, name: str, file: Path, seconds: float) -> dict[str, Any]:
    """One test on its ranks: passed, skipped, or failed with what the first rank said that failed."""
    ranks = _ranks_of(cls, name)
    with tempfile.TemporaryDirectory() as folder:
        children = {_fork(cls, name, rank, ranks, Path(folder)): rank for rank in range(ranks)}
        timed_out = _wait(children, Path(folder), seconds)
        results = [
            json.loads(each.read_text())
            for each in sorted(Path(folder).glob("*.json"), key=lambda path: path.stat().st_mtime)
        ]
    failed = [each for each in results if each["outcome"] == "failed"]
    if failed:
        return failed[0]
    if timed_out or len(results) < ranks:
        reason = "takes too long" if timed_out else "a rank crashed"
        return {"outcome": "failed", "error": reason, "message": "", "at": "", "source": ""}
    return results[0]


def _ranks_of(cls: Any, name: str) -> int:
    """How many processes a test wants; one where its class starts none, or starts threads."""
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    return int(cls(name).world_size) if issubclass(cls, MultiProcessTestCase) else 1


def _fork(cls: Any, name: str, rank: int, ranks: int, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    torch.set_num_threads(1)
    try:
        result = _run_rank(cls, name, rank, ranks, folder)
        (folder / f"{rank}.part").write_text(json.dumps(result))
        (folder / f"{rank}.part").rename(folder / f"{rank}.json")
    finally:
        os._exit(0)


def _run_rank(cls: Any, name: str, rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    from torch.testing._internal.common_distributed import MultiProcessTestCase
    from torch.testing._internal.common_utils import set_rng_seed

    test = cls(name)
    set_rng_seed()
    try:
        if not issubclass(cls, MultiProcessTestCase):
            _debugged(test)
            return {"outcome": "passed"}
        test.rank, test.file_name = rank, str(folder / "store")
        if any(base.__name__ == "FSDPTest" for base in cls.__mro__):
            store = dist.FileStore(test.file_name, ranks)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        getattr(test, name)()
    except unittest.SkipTest:
        return {"outcome": "skipped"}
    except SystemExit:
        return {"outcome": "skipped"}  # torch's decorators leave so
    except BaseException as error:
        return _failure(error, cls)
    return {"outcome": "passed"}


def _debugged(test: unittest.TestCase) -> None:
    """`TestCase.debug`, by the class's own `run`: threads are started and joined there."""
    result = unittest.TestResult()
    errors: list[BaseException] = []

    def add(_: Any, error: Any) -> None:
        errors.append(error[1])

    result.addError = result.addFailure = add  # type: ignore[method-assign]
    test.run(result)
    if errors:
        raise errors[0]
    if result.skipped:
        raise unittest.SkipTest


def _failure(error: BaseException, cls: Any) -> dict[str, Any]:
    """What is known of an error, with the line of the tests that it came from."""
    file = sys.modules[cls.__module__].__file__
    frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == file]
    last = frames[-1] if frames else None
    return {
        "outcome": "failed",
        "error": type(error).__name__,
        "message": str(error)[:2000],
        "at": f"{Path(last.filename).name}:{last.lineno}" if last else "",
        "source": (last.line or "") if last else "",
        "trace": "".join(traceback.format_exception(error))[-6000:],
    }


def _wait(children: dict[int, int], folder: Path, seconds: float) -> bool:
    """Until all have ended; those that wait for one that failed are killed. Whether the time was over."""
    start, failed_since = time.monotonic(), 0.0
    while children:
        ended, _ = os.waitpid(-1, os.WNOHANG)
        if ended:
            rank = children.pop(ended)
            result = folder / f"{rank}.json"
            if not result.exists() or '"failed"' in result.read_text():
                failed_since = failed_since or time.monotonic()
            continue
        now = time.monotonic()
        over = now - start > seconds
        if over or (failed_since and now - failed_since > 3):
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            return over and not failed_since
        time.sleep(0.01)
    return False


def run_file(
    file: Path, form: str, results: Path, seconds: float, wanted: list[str] | None
) -> None:
    """Adds a line of JSON to ``results`` for each test that is wanted (None: all) and has none yet.

    The last one, without a test, says that the file is done, or why it cannot be imported.
    """
    known = {each["test"] for each in read(results)}
    try:
        prepare(file, form)
        module = load(file.stem, file, form)
    except Exception as error:
        found = {"test": "", **_failure(error, type(error)), "trace": traceback.format_exc()}
        _add(results, found)
        return
    for cls, name in tests_in(module):
        test = f"{cls.__name__}.{name}"
        if test not in known and (wanted is None or test in wanted):
            _add(results, {"test": test, **run(cls, name, file, seconds)})
    _add(results, {"test": "", "outcome": "done"})


def read(results: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; none where there is no such file."""
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def _add(results: Path, found: dict[str, Any]) -> None:
    with results.open("a") as stream:
        stream.write(json.dumps(found) + "\n")
