"""Buffers behind the sharding: FSDP1 moved them to `device_id` and cast them to `buffer_dtype`, FSDP2 does neither.

`fully_shard` moves the buffers that a model has. Those that are on the meta device then get their values later, and what a
module fills by an assignment (`self.table = torch.arange(n)`) is on the CPU.
"""

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.registered import has_no_buffers


def write(construction: Construction, code: Code) -> None:
    """Adds what moves and casts the buffers of a model to its code: in one loop, where both are done alike."""
    if code.cast and has_no_buffers(construction):
        code.cast = ""
    both = _moved_and_cast(construction, code)
    room = (
        construction.context.line_length
        - construction.context.file.statement(construction.call).col_offset
    )
    is_one = code.device and code.cast and not code.exempt and " and " not in code.cast
    if is_one and max(map(len, both)) <= room:
        code.below += both
        return
    if code.device:
        moved = _moved(construction, code)
    else:
        moved = []
    if code.cast:
        cast = _cast(construction, code)
    else:
        cast = []
    if cast and cast[0] in code.last and not moved:
        _add_to_loop(code.last, cast)
        return
    if cast and cast[0] in moved:
        del cast[0]
    elif cast and code.cast_can_be_none:
        cast = [f"if {code.cast} is not None:", *[f"    {line}" for line in cast]]
    code.below += [*moved, *cast]


def _add_to_loop(lines: list[str], loop: list[str]) -> None:
    """Adds what a loop does to one of some statements with the same head."""
    end = lines.index(loop[0]) + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    lines[end:end] = loop[1:]


def _moved_and_cast(construction: Construction, code: Code) -> list[str]:
    context = construction.context
    call = construction.call
    buffer = context.local("buffer", call)
    dtype = context.local("dtype", call)
    return [
        f"for {buffer} in {code.model}.buffers():",
        f"    {dtype} = {code.cast} if {buffer}.is_floating_point() else None",
        f"    {buffer}.data = {buffer}.to({code.device}, {dtype})",
    ]


def _moved(construction: Construction, code: Code) -> list[str]:
    buffer = construction.context.local("buffer", construction.call)
    return [
        f"for {buffer} in {code.model}.buffers():",
        f"    {buffer}.data = {buffer}.to({code.device})",
    ]


def _cast(construction: Construction, code: Code) -> list[str]:
    """Statements that cast the buffers of floating point, of all modules but those that are exempt."""
    context = construction.context
    call = construction.call
    buffer = context.local("buffer", call)
    test, _, dtype = code.cast.rpartition(" and ")
    lines = [
        f"for {buffer} in {code.model}.buffers():",
        f"    if {buffer}.is_floating_point():",
        f"        {buffer}.data = {buffer}.to({dtype})",
    ]
    if code.exempt:
        module = context.local("module", call)
        lines[0] = f"for {buffer} in {module}.buffers(recurse=False):"
        lines = [
            f"for {module} in {code.model}.modules():",
            f"    if not isinstance({module}, {code.exempt}):",
            *[f"        {line}" for line in lines],
        ]
    if test:
        return [f"if {code.cast}:", *[f"    {line}" for line in lines]]
    return lines
