"""What the rules may ask about a program: its files, names and values, each found out once and only when asked.

names       the names of FSDP1, of torch and of the runtime
scopes      the scopes of a file and what binds their names
file        one file, walked once into tables
nodes       what many rules ask of one node: its literal value, the object of a method
tree        all files of the run: which import which, and so can get a model or read a name
program     the files that mention FSDP: what a name means across them
origins     where a value comes from: one step back at a time, and the one expression that made it
answers     answers of a search that may lead back to where it began
wrapping    which calls wrap a model with FSDP1, and which files it can come to
models      which expressions can hold an FSDP1 model
wrapped     which names still meant the module inside FSDP1's wrapper
parameters  which expressions hold parameters or gradients of such a model
staying     what is passed to a library that wraps with FSDP1 itself
unreached   which places no sharded model reaches, or no torch from the target on
"""
