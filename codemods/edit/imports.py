"""The import editor: statements edited in place, so that no guard, comment or `noqa` is lost."""

from fsdp_migrate.codemods.edit.import_insertion import insert_imports
from fsdp_migrate.codemods.edit.import_lines import (
    edit_import_line,
    edit_import_suite,
    lost_comments,
)
from fsdp_migrate.codemods.edit.import_statement import ImportEdit
from fsdp_migrate.codemods.edit.statements import ensure_body

__all__ = [
    "ImportEdit",
    "edit_import_line",
    "edit_import_suite",
    "ensure_body",
    "insert_imports",
    "lost_comments",
]
