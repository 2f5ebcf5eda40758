"""The interface for other programs."""

from pathlib import Path

import pytest

import fsdp_migrate
from fsdp_migrate.findings import Action

PROGRAM = """\
# -*- coding: latin-1 -*-
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)  # é
"""


def test_a_program_is_migrated() -> None:
    after, findings = fsdp_migrate.migrate_source(PROGRAM, form="bridge")
    assert after == PROGRAM.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
    assert [(each.line, each.code) for each in findings] == [(2, "FSDP001"), (4, "FSDP002")]
    assert {finding.action for finding in findings} == {Action.RUNTIME}
    assert fsdp_migrate.migrate_source(after, form="bridge")[0] == after
    plain, findings = fsdp_migrate.migrate_source(PROGRAM)
    assert "    fully_shard(" in plain
    assert {finding.action for finding in findings} == {Action.REWRITE}
    assert fsdp_migrate.migrate_source(plain)[0] == plain
    both = (plain, fsdp_migrate.migrate_source(after)[0])  # but for the order of two imports
    assert len({tuple(sorted(text.splitlines())) for text in both}) == 1
    assert fsdp_migrate.migrate_source("x = 1\n") == ("x = 1\n", [])


def test_what_is_no_program_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: does not parse"):
        fsdp_migrate.migrate_source("# FSDP\nif:\n")
    with pytest.raises(ValueError, match="'plain' is no form"):
        fsdp_migrate.migrate_source("", form="plain")


def test_a_project_is_checked(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.fsdp-migrate]\nignore = ["FSDP002"]\n')
    (folder / "train.py").write_text("\n".join(PROGRAM.splitlines()[1:]), "utf-8")
    (folder / "bad.py").write_text("FSDP(\n")
    report = fsdp_migrate.check([folder])
    assert [finding.code for finding in report.findings] == ["FSDP001"]
    assert [problem.path for problem in report.errors] == ["bad.py"]
    assert not report.is_done
    assert not report.changes
    for one in (folder, str(folder)):
        assert fsdp_migrate.check(one).findings == report.findings
    assert not fsdp_migrate.check(["missing"]).is_done
