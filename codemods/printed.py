"""Whether a program does nothing with a value but print it."""

import ast

from fsdp_migrate.facts.file import File, last_name

_PRINTING = ("print", "debug", "info", "warning")


def is_only_printed(file: File, value: ast.expr) -> bool:
    """Whether a value, or each read of the variable that it is assigned to, is in a call that writes to the screen or a log."""
    match file.statement(value):
        case ast.Expr(ast.Call() as call):
            return call is not value and last_name(call.func) in _PRINTING
        case ast.Assign(targets=[ast.Name() as target]) as assignment:
            reads = file.reads(target)
            is_read_elsewhere = all(file.statement(read) is not assignment for read in reads)
            return bool(reads) and is_read_elsewhere and all(_is_in_print(file, r) for r in reads)
    return False


def _is_in_print(file: File, read: ast.Name) -> bool:
    return isinstance(file.statement(read), ast.Expr) and is_only_printed(file, read)
