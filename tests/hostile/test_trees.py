"""Trees of other people: nothing in them runs, nothing outside of them is written, and their names do nothing to a terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..fuzz.checks import FSDP

PROGRAM = f"{FSDP}\nmodel = FSDP(model)\n"
TOOL = Path(sys.executable).parent / "fsdp-migrate"
MODES = (["check"], ["--form", "bridge"])


def git(folder: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def tool(folder: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[bytes]:
    """Runs on the folder, or on paths among the arguments."""
    command = [TOOL, *arguments, *["."] * all(not each.endswith(".py") for each in arguments)]
    environment = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed repository with an FSDP1 program, and a program beside it that leaves a mark when it runs."""
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM)
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 0\n")
    evil.chmod(0o755)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def configured(*settings: str) -> Callable[[Path, Path], None]:
    def set_up(folder: Path, evil: Path) -> None:
        for setting in settings:
            name, value = setting.split("=", 1)
            git(folder, "config", name, value.format(evil=evil))

    return set_up


def hooks(folder: Path, evil: Path) -> None:
    names = "post-index-change post-checkout pre-commit fsmonitor-watchman reference-transaction"
    for name in names.split():
        (folder / ".git" / "hooks" / name).symlink_to(evil)


def attributes(folder: Path, evil: Path) -> None:
    """Filters and drivers, named where no commit shows it."""
    names = ("filter.x.clean", "filter.x.smudge", "filter.x.process")
    names += ("diff.x.textconv", "diff.x.command")
    configured(*(name + "={evil}" for name in names))(folder, evil)
    (folder / ".git" / "info" / "attributes").write_text("* filter=x diff=x\n")
    os.utime(folder / "train.py", (1, 1))  # git has to read the file again


def included(folder: Path, evil: Path) -> None:
    (folder / "more").write_text(
        f"[core]\n\tfsmonitor = {evil}\n\thooksPath = .\n\tworktree = /etc\n"
    )
    configured("include.path=../more")(folder, evil)


def partial_clone(folder: Path, evil: Path) -> None:
    """Objects that are missing, and a remote that would bring them."""
    configured(
        "core.repositoryFormatVersion=1", "extensions.partialClone=origin", "remote.origin.promisor=true",
        "remote.origin.url=ssh://host/x", "core.sshCommand={evil}", "remote.origin.uploadpack={evil}",
    )(folder, evil)  # fmt: skip
    for file in (folder / ".git" / "objects").glob("??/*"):
        file.unlink()


def bare_repository(folder: Path, evil: Path) -> None:
    """A folder of the tree that looks like a repository itself."""
    nested = folder / "data"
    nested.mkdir()
    git(nested, "init", "-q", "--bare")
    (nested / "train.py").write_text(PROGRAM)
    git(nested, "config", "core.fsmonitor", str(evil))
    git(nested, "config", "core.bare", "false")
    git(nested, "config", "core.worktree", str(nested))


def submodule(folder: Path, evil: Path) -> None:
    nested = folder / "nested"
    nested.mkdir()
    (nested / "train.py").write_text(PROGRAM)
    git(nested, "init", "-q")
    git(nested, "config", "core.fsmonitor", str(evil))
    attributes(nested, evil)


def on_the_path(folder: Path, evil: Path) -> None:
    (folder / "git").symlink_to(evil)
    (folder / "black").symlink_to(evil)


def modules(folder: Path, evil: Path) -> None:
    """Files that Python imports by itself, or that are called like what the tool imports."""
    code = f"import os\nos.system({str(evil)!r})\nimport fsdp\n"
    names = "sitecustomize usercustomize click libcst yaml black tokenize torch conftest setup encodings"
    for name in names.split():
        (folder / f"{name}.py").write_text(code)
    (folder / "pyproject.toml").write_text(
        "[tool.black]\nline-length = 40\n[build-system]\nrequires = []\nbuild-backend = 'setup'\n"
    )


ATTACKS = {
    "core.fsmonitor": configured("core.fsmonitor={evil}"),
    "hooks": hooks,
    "core.hooksPath": configured("core.hooksPath=..", "core.fsmonitor=true"),
    "filters and drivers": attributes,
    "external diff and pager": configured("diff.external={evil}", "core.pager={evil}", "core.editor={evil}", "core.askpass={evil}", "credential.helper={evil}"),
    "aliases": configured("alias.ls-files=!{evil}", "alias.status=!{evil}", "alias.rev-parse=!{evil}"),
    "included configuration": included,
    "a partial clone": partial_clone,
    "a bare repository inside": bare_repository,
    "a repository inside": submodule,
    "git on a relative PATH": on_the_path,
    "modules": modules,
}  # fmt: skip


# Others of the same kind are `thorough`.
_QUICK = ("core.fsmonitor", "hooks", "filters and drivers", "git on a relative PATH", "modules")


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(attack, id=name, marks=() if name in _QUICK else pytest.mark.thorough)
        for name, attack in ATTACKS.items()
    ],
)
def test_nothing_of_a_tree_runs(tree: Path, attack: Callable[[Path, Path], None]) -> None:
    attack(tree, tree.parent / "evil")
    for mode in MODES:
        done = tool(tree, *mode, path=f".:{os.environ['PATH']}:")
        assert done.returncode in (0, 1, 2), done.stderr
        assert b"train.py" in done.stdout + done.stderr, mode
        assert b"Traceback" not in done.stderr
        assert not (tree.parent / "ran").exists(), mode


def test_the_attacks_work(tree: Path) -> None:
    """What the tests above are worth: git itself runs the program."""
    attributes(tree, tree.parent / "evil")
    subprocess.run(["git", "status"], cwd=tree, capture_output=True, check=False)
    assert (tree.parent / "ran").exists()


@pytest.mark.parametrize("repository", [True, False])
def test_links_lead_nowhere(tree: Path, repository: bool) -> None:
    other = tree.parent / "other"
    other.mkdir()
    (other / "train.py").write_text(PROGRAM)
    git(other, "init", "-q")
    (tree / "vendor").symlink_to("../other")
    (tree / "loop").symlink_to(".")
    (tree / "link.py").symlink_to("../other/train.py")
    (tree / "package").mkdir()
    (tree / "package" / "model.py").write_text(PROGRAM)
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "two")
    (tree / "package").rename(tree.parent / "moved")
    (tree / "package").symlink_to("../moved")  # git goes on to list package/model.py
    if not repository:
        (tree / ".git").rename(tree.parent / "git")
    done = tool(tree, "--form", "bridge", "--allow-dirty")
    assert done.stdout.count(b"rewrote") == 1
    assert "fsdp_migrate" in (tree / "train.py").read_text()
    for file in (other / "train.py", tree.parent / "moved" / "model.py"):
        assert file.read_text() == PROGRAM


@pytest.mark.parametrize("repository", [True, False])
def test_what_is_no_file(tree: Path, repository: bool) -> None:
    if not repository:
        (tree / ".git").rename(tree.parent / "git")
    os.mkfifo(tree / "pipe.py")
    (tree / "folder.py").mkdir()
    (tree / "folder.py" / "inside.py").write_text(PROGRAM)
    (tree / "zero.py").symlink_to("/dev/zero")
    (tree / "gone.py").symlink_to("nowhere")
    (tree / "self.py").symlink_to("self.py")
    done = tool(tree, "check", "--format", "json")
    named = {finding["path"] for finding in json.loads(done.stdout)["findings"]}
    assert named == {"train.py", "folder.py/inside.py"}
    assert done.stderr == b""
    odd = ["pipe.py", "zero.py", "gone.py", "self.py"]
    named = tool(tree, "check", *odd, "folder.py").stderr.decode()
    assert [named.count(name) for name in odd] == [1, 1, 1, 1]


NAMES = [b"\x1b[31mred\x1b]0;title\x07.py", b"two\nlines.py", b"bad\xff\xfe.py", b"tab\t.py", "bidi\u202e.py".encode(), b"a`b|c<i>[x](y).py", b"-x.py", b"::error file=a::b.py"]  # fmt: skip


@pytest.mark.parametrize("repository", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_names_do_nothing_to_a_terminal(tree: Path, repository: bool) -> None:
    files = [os.path.join(os.fsencode(tree), name) for name in NAMES]
    for file in files:
        with open(file, "wb") as handle:
            handle.write(PROGRAM.encode())
    if not repository:
        (tree / ".git").rename(tree.parent / "git")
    for form in ("text", "github", "sarif", "json"):
        done = tool(tree, "check", "--format", form)
        assert b"Traceback" not in done.stderr, (form, done.stderr)
        assert done.stdout, form
        for said in (done.stdout, done.stderr):
            text = said.decode()
            assert all(sign.isprintable() for sign in text.replace("\n", "")), form
            assert not any(line.startswith("::error file=a::") for line in text.split("\n")), form
    assert tool(tree, "--form", "bridge", "--allow-dirty").returncode == 0
    for file in files:
        with open(file, "rb") as handle:
            assert b"fsdp_migrate" in handle.read()


def test_code_does_nothing_to_a_terminal(tree: Path) -> None:
    evil = "(m['\x1b]0;t\x07\u202e'], sharding_strategy='<i>`|')\n"
    (tree / "train.py").write_text(PROGRAM.replace("(model)\n", evil))
    for form in ("text", "github"):
        text = tool(tree, "check", "--format", form).stdout.decode()
        assert all(sign.isprintable() for sign in text.replace("\n", "")), form
    report = tree.parent / "report.html"
    tool(tree, "check", "--report", str(report))
    assert not [sign for sign in ("<i>", "\x1b", "\u202e") if sign in report.read_text()]


def test_json_with_comments_is_read_and_not_rewritten(tree: Path) -> None:
    """tsconfig.json has comments; a section with them stays as it is, and is said."""
    text = '{\n  // of "paths"\n  "fsdp": 1, /* the\n rest */ "x": "//",\n}\n'
    (tree / "tsconfig.json").write_text(text)
    assert tool(tree, "check", "tsconfig.json").stderr == b""
    config = '{"fsdp": "full_shard", // on\n "fsdp_config": {"fsdp_offload_params": false}}\n'
    (tree / "config.json").write_text(config)
    done = tool(tree, "config.json", "--allow-dirty")
    assert b"FSDP802" in done.stdout
    assert b"did not change it, because it is JSON with comments" in done.stdout
    assert (tree / "config.json").read_text() == config


HOSTILE_FILES = {
    "NUL bytes": (b"fsdp = 1\n\0\n", "NUL"),
    "deep parentheses": (b"# fsdp\nx = " + b"(" * 1000 + b")" * 1000, "does not parse"),
    "deep blocks": (b"# fsdp\n" + b"".join(b" " * n + b"if x:\n" for n in range(1000)) + b" " * 1000 + b"pass\n", "does not parse"),
    "deep attributes": (b"# fsdp\nx = a" + b".b" * 5000 + b"\n", ""),
    "deep unary": (b"# fsdp\nx = " + b"-" * 5000 + b"1\n", ""),
    "a long sum": (b"# fsdp\nx = " + b"+".join([b"1"] * 5000) + b"\n", ""),
    "a long elif": (b"# fsdp\nif a: pass\n" + b"elif a: pass\n" * 3000, ""),
    "a huge number": (b"# fsdp\nx = " + b"9" * 100_000 + b"\n", "does not parse"),
    "a bad cookie": (b"# coding: fsdp\n", "cannot be decoded: unknown encoding"),
    "a codec that is none for text": (b"# coding: zlib\n# fsdp\n", "co"),
    "one long line": (PROGRAM.encode() + b"x = [" + b"1, " * 100_000 + b"]\n", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def said_of_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The lines of both modes that name one of the files, which are in one tree; the program beside them is migrated."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "train.py").write_text(PROGRAM)
    for name, (data, _) in HOSTILE_FILES.items():
        (folder / f"{name}.py").write_bytes(data)
    done = [tool(folder, *mode).stderr.decode() for mode in MODES]
    assert "fsdp_migrate" in (folder / "train.py").read_text()
    for text in done:
        assert "Traceback" not in text
        assert "internal error" not in text

    def lines(name: str) -> list[str]:
        return ["".join(x for x in text.splitlines() if f"{name}.py" in x) for text in done]

    return lines


@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_files_have_one_clear_line(name: str, said_of_files: Callable[[str], list[str]]) -> None:
    _, said = HOSTILE_FILES[name]
    for line in said_of_files(name):
        assert line.count(f"{name}.py") <= 1
        assert said in line


@pytest.mark.thorough
def test_a_hundred_thousand_lines(tree: Path) -> None:
    (tree / "long.py").write_text(PROGRAM + "x = [1, 'two', f(3)]  # four\n" * 100_000)
    done = tool(tree, "--form", "bridge", "--allow-dirty")
    assert done.stderr.count(b"long.py") <= 1
    assert all("fsdp_migrate" in (tree / name).read_text() for name in ("long.py", "train.py"))


def test_settings_that_nest_without_end(tree: Path) -> None:
    (tree / "pyproject.toml").write_text("x = " + "[" * 100_000)
    done = tool(tree, "check")
    assert b"pyproject.toml" in done.stderr
    assert b"Traceback" not in done.stderr
