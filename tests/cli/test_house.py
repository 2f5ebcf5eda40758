"""What stands around the code: packaging, hooks and the files that name each other."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
import yaml

from fsdp_migrate import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_package_is_installed() -> None:
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    expected = {
        ".".join([package, *file.parent.relative_to(ROOT / folder).parts])
        for package, folder in folders.items()
        for file in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in file.parts
    }
    pages = "fsdp_migrate.docs.rules"  # no code: `explain` prints them
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == expected | {pages}


def test_the_tool_needs_no_torch() -> None:
    assert not [name for name in PROJECT["project"]["dependencies"] if name.startswith("torch")]


def test_version_has_a_changelog_entry() -> None:
    assert PROJECT["project"]["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_development_pins_torch() -> None:
    assert re.search(r"^torch==\d", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)


def test_workflow_gives_the_action_inputs_that_it_has() -> None:
    action: Any = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    workflow: Any = yaml.safe_load((ROOT / "docs/ci/github-workflow.yml").read_text("utf-8"))
    step = next(
        s for s in workflow["jobs"]["fsdp"]["steps"] if "fsdp-migrate@" in s.get("uses", "")
    )
    assert set(step["with"]) <= set(action["inputs"])
    required = {name for name, it in action["inputs"].items() if it.get("required")}
    assert required <= set(step["with"])


def test_users_are_given_a_revision_that_exists() -> None:
    """Until the first release there is no tag: the branch is all that others can name."""
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## (\S+)$", changes, re.MULTILINE)
    known = {"main", *(f"v{version}" for version in released)}
    workflow = (ROOT / "docs/ci/github-workflow.yml").read_text("utf-8")
    page = (ROOT / "docs/project.md").read_text("utf-8")
    named = [
        *re.findall(r"uses: OWNER/fsdp-migrate@(\S+)", workflow),
        *re.findall(r"repo: https://github.com/OWNER/fsdp-migrate.*\n *rev: (\S+)", page),
    ]
    assert len(named) == 2
    assert set(named) <= known


def test_links_in_the_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_a_call_goes_through_few_modules(form: str, tmp_path: Path) -> None:
    imported = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
    (tmp_path / "train.py").write_text(f"{imported}\n\nmodel = FSDP(model)\n")
    command = [sys.executable, str(ROOT / "benchmarks/entered.py"), ".", "--diff"]
    done = subprocess.run([*command, "--form", form], cwd=tmp_path, capture_output=True, text=True)
    entered = re.search(r"(\d+) modules entered", done.stderr)
    assert entered is not None
    assert int(entered[1]) <= 60, done.stderr


def _imported(file: Path, module: str) -> Iterator[str]:
    """The paths that a module imports, in functions too: modules, and names in them."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            home = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{home}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_modules_import_each_other_not_even_late() -> None:
    modules = {}
    for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for file in (ROOT / folder).rglob("*.py"):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            modules[".".join([package, *parts]).removesuffix(".__init__")] = file
    graph = {
        module: {
            path if path in modules else path.rpartition(".")[0] for path in _imported(file, module)
        }
        & modules.keys() - {module}
        for module, file in modules.items()
    }
    assert sum(map(len, graph.values())) > 500
    TopologicalSorter(graph).prepare()  # raises CycleError


# What a package may import, beside itself.
ARROWS = {
    "runtime": (),
    "verify.recorder": (),
    "facts": ("search", "source"),
    "codemods": ("facts", "findings", "line_length", "pins", "search", "source"),
}


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    folder = ROOT / folders.get(
        f"fsdp_migrate.{package}", f"fsdp_migrate/{package.replace('.', '/')}"
    )
    files = [*folder.rglob("*.py")]
    assert len(files) > 5
    for file in files:
        parts = file.relative_to(folder).with_suffix("").parts
        module = ".".join(["fsdp_migrate", package, *parts]).removesuffix(".__init__")
        for path in _imported(file, module):
            below = path.removeprefix("fsdp_migrate.")
            is_allowed = any(
                f"{below}.".startswith(f"{each}.") for each in (package, *ARROWS[package])
            )
            assert is_allowed or below == path, f"{module} imports {path}"
