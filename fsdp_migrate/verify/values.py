"""`values`: a program is run once, and what its ranks saw of FSDP1's constructs becomes one recording."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from fsdp_migrate import git
from fsdp_migrate.values import VERSION, Entry, Values, merged
from fsdp_migrate.verify import main
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.recording import Recording
from fsdp_migrate.verify.records import Run

_MAIN = re.compile(r"\b__(?:mp_)?main__\.")


def record(
    original: Path,
    output: Path,
    *,
    entry: Path | None = None,
    root: Path | None = None,
    links: Sequence[Path] = (),
    ranks: int = 2,
    arguments: Sequence[str] = (),
    launcher: Launcher = Launcher.AUTO,
    device: str = "auto",
    timeout: float = main.TIMEOUT,
) -> Values:
    """Run a program once, and write what each FSDP1 construct was given; arguments and errors as for `verify`."""
    device = main.usable_device(device, ranks)
    alone = main.Pair(
        original,
        None,
        entry,
        root,
        links,
        ranks,
        arguments,
        launcher,
        device,
        None,
        timeout,
        None,
        lambda text: None,
        Recording(values=True),
        may_emulate=device == "cpu",
        form="auto",
    )
    with main.temporary_folder() as folder:
        program = alone.copy("original", original, Path(folder).resolve())
        run, _ = alone.run_original(program, Path(folder).resolve())
        found = collect(run, program)
        _write(found, output, program, ranks, arguments)
    return found


def collect(run: Run, program: Program) -> Values:
    """The recording of a run, with paths relative to the program's folder."""
    files: dict[str, str] = {}
    entries = list(_own(run, program, files))
    return Values(tuple(merged(entries)), dict(sorted(files.items())))


def _own(run: Run, program: Program, files: dict[str, str]) -> Iterator[Entry]:
    """The entries of the program's own files; a library's constructs are not the program's to migrate."""
    root = program.root.resolve()
    for rank in run.ranks:
        for entry in rank.constructs:
            paths = [Path(name) for name in (entry["file"], *entry.get("sources", ()))]
            if not paths[0].is_relative_to(root):
                continue
            for path in paths:
                if path.is_relative_to(root):
                    name = path.relative_to(root).as_posix()
                    files[name] = sha256(path.read_bytes()).hexdigest()
            rest = {key: value for key, value in entry.items() if key != "sources"}
            named = _MAIN.sub(f"{program.script.stem}.", json.dumps(rest))
            yield json.loads(named) | {"file": paths[0].relative_to(root).as_posix()}


def _write(
    values: Values, file: Path, program: Program, ranks: int, arguments: Sequence[str]
) -> None:
    """Writes a recording, with paths relative to the repository, or to the program's folder where there is none."""
    top = git.toplevel(program.source)
    prefix = program.source.relative_to(top.resolve()) if top else Path()
    script = (prefix / program.script.relative_to(program.root)).as_posix()
    document: dict[str, Any] = {
        "version": VERSION,
        "program": shlex.join([script, *arguments]),
        "ranks": ranks,
        "torch": metadata.version("torch"),
        "files": {(prefix / name).as_posix(): digest for name, digest in values.files.items()},
        "constructs": [e | {"file": (prefix / e["file"]).as_posix()} for e in values.entries],
    }
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
