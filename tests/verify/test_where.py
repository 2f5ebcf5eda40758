"""`verify` names the line at which a program differs from its migration, and both values."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.verify.folders import Program, copy
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.where.lines import Line
from fsdp_migrate.verify.where.runs import look

from .where_programs import CASES, Case

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

QUICK = (
    "name in a set", "freeze a module", "norms of modules", "groups before",
)  # fmt: skip
"""One of each kind; the others are thorough."""

Look = Callable[..., list[Line]]


def look_at(text: str, form: str, folder: Path, migrated: str | None = None) -> list[Line]:
    """The lines that differ between a program and its migration, or another one."""
    (folder / "src").mkdir()
    script = folder / "src" / "train.py"
    script.write_text(text)
    before = copy("original", script, folder / "original" / "copy")
    after = copy("migrated", script, folder / "migrated" / "copy")
    if migrated is None:
        migrate(after.root, form)
    else:
        after.script.write_text(migrated)
    how = Options(device="cpu", form=form, timeout=60)
    recording = Recording(canonical=True, lines=100)

    def again() -> Program:
        return copy("original", script, folder / "again" / "original" / "copy")

    return look(before, after, again, folder, how, (recording, recording))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough) for name in CASES],
)
def test_the_line_is_named_with_both_values(name: str, tmp_path: Path) -> None:
    case: Case = CASES[name]
    found = look_at(case.text(), case.form, tmp_path)
    texts = [str(line) for line in found]
    expected = "# HERE" if "# HERE" in case.text() else "model = FSDP("
    assert found, "no line"
    assert expected in found[0].source, texts
    assert found[0].pairs[0].original != found[0].pairs[0].migrated
    assert len(found) <= 2, texts
