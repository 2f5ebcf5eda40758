"""What the rules may ask about a program: its files, names and values, each found out once and only when asked.

names       the names of FSDP1, of torch and of the runtime
scopes      the scopes of a file and what binds their names
file        one file, walked once into tables
program     the files of a run: what a name means across them
reach       which files import which, and so can get a model or read a name
values      which assignments can have run before a place, and the one expression that gives a name its value
"""
