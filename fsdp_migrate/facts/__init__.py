"""What the rules may ask about a program: its files, names and values, each found out once and only when asked.

names       the names of FSDP1, of torch and of the runtime
scopes      the scopes of a file and what binds their names
file        one file, walked once into tables
tree        all files of the run: which import which, and so can get a model or read a name
program     the files that mention FSDP: what a name means across them
values      which assignments can have run before a place, and the one expression that gives a name its value
"""
