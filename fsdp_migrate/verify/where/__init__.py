"""The first lines of a program at which its migration does something else, with both values.

Both programs run again while the recorder (`fsdp_migrate/verify/recorder/lines`) writes down what each line of their own
files changes. Here the two journals are read, the migrated program's lines are mapped to the original's, and both are walked
side by side.
"""
