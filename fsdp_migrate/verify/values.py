"""`values`: a program is run once, and what FSDP1's constructs were given on its ranks becomes one recording."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from fsdp_migrate import git
from fsdp_migrate.values import VERSION, Entry, Values, merged
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.main import Pair, temporary_folder
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run

_MAIN = re.compile(r"\b__(?:mp_)?main__\.")


def record(original: Path, output: Path, **options: Any) -> Values:
    """Run a program once, and write what each FSDP1 construct was given; options and errors as for `verify`."""
    how = Options(**options).usable()
    alone = Pair(original, None, how, Recording(values=True))
    with temporary_folder() as folder:
        program = alone.copy("original", original, folder)
        run, _ = alone.run_original(program, folder)
        found = collect(run, program)
        _write(found, output, program, how)
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


def _write(values: Values, file: Path, program: Program, how: Options) -> None:
    """Writes a recording, with paths relative to the repository, or to the program's folder where there is none."""
    top = git.toplevel(program.source)
    prefix = program.source.relative_to(top.resolve()) if top else Path()
    script = (prefix / program.script.relative_to(program.root)).as_posix()
    document: dict[str, Any] = {
        "version": VERSION,
        "program": shlex.join([script, *how.arguments]),
        "ranks": how.ranks,
        "torch": metadata.version("torch"),
        "files": {(prefix / name).as_posix(): digest for name, digest in values.files.items()},
        "constructs": [e | {"file": (prefix / e["file"]).as_posix()} for e in values.entries],
    }
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
