"""The pages of docs/gallery: what the tool makes of each bundled program, in every form. `make fixtures` writes them anew.

They are also what tests/test_fixtures.py compares with, so that a change of the tool shows in the diff that a user reads.
"""

import difflib
from functools import cache
from pathlib import Path

from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

from .bundled import CASES, FIXTURES, python_files

GALLERY = FIXTURES.parent / "docs" / "gallery"
FORMS = {"auto": "By default", "torch": "With `--form torch`", "bridge": "With `--form bridge`"}


@cache
def migrated(case: str, form: str = "auto") -> tuple[Report, dict[str, bytes]]:
    """What the tool finds in a bundled program, and its files after the migration, by their names."""
    files = python_files(FIXTURES / case / "original")
    report = analyse(list(files.values()), Options(form))
    assert not report.errors
    after = {change.path: change.after for change in report.changes}
    return report, {name: after.get(path, path.read_bytes()) for name, path in files.items()}


def write_migrated(case: str, folder: Path, form: str = "auto") -> Path:
    """The whole program after the migration, in a folder of its own."""
    for name, content in migrated(case, form)[1].items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return folder


def diff(case: str, form: str) -> str:
    """The changes of all files, by paths inside of the program."""
    after = migrated(case, form)[1]
    lines: list[str] = []
    for name, path in python_files(FIXTURES / case / "original").items():
        texts = (path.read_bytes(), after[name])
        old, new = (text.decode().splitlines(keepends=True) for text in texts)
        lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(lines)


def page(case: str) -> str:
    """One program's page."""
    about = CASES[case]
    parts = [f"# {about['title']}", about["gains"].strip()]
    for form, title in FORMS.items():
        shown = diff(case, form)
        if form == "torch" and shown == diff(case, "auto"):
            parts += [f"## {title}", "The same."]
            continue
        parts += [f"## {title}", f"```diff\n{shown}```"]
    return "\n\n".join(parts) + "\n"


def pages() -> dict[str, str]:
    """All pages, by the names of their files."""
    rows = [
        f"| [{about['title']}]({case}.md) | {' '.join(about['gains'].split())} |"
        for case, about in CASES.items()
    ]
    index = "\n".join(
        [
            "# Diffs to read",
            "",
            "Programs like those in real repositories: the whole diff in each form, and what is gained.",
            "The programs are in `fixtures/`. A test compares these pages with what the tool does.",
            "",
            "| program | what is gained |",
            "|---|---|",
            *rows,
            "",
        ]
    )
    return {"README.md": index, **{f"{case}.md": page(case) for case in CASES}}


if __name__ == "__main__":
    GALLERY.mkdir(exist_ok=True)
    for name, text in pages().items():
        (GALLERY / name).write_text(text, "utf-8")
