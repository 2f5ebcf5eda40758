"""Facts about a whole project, read from its source with the standard library's `ast`: no user code is imported or run.

names    what torch's FSDP1 exports, under all the paths by which programs reach it
module   one parsed file: its scopes and what each name in them is bound to
project  all files together: what a dotted name means, across imports and re-exports
values   where a value comes from (backwards: from an argument to the expression that made it)
models   where an FSDP1 model goes (forwards: from its constructor to every use); the work is done by
         flow (from an expression to the next), bindings (names and attributes) and arguments (calls), with
         labels (what is followed), paths (places in containers), instances (objects) and uses (tables)
makeup   what a model class is made of, with known_modules (torch's classes) and extension (what a file adds to a model)
"""
