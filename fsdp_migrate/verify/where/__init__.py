"""The first lines of a program at which its migration does something else, with both values.

Both programs run again while the recorder writes down what each line of their own files changes
(`runtime/record/lines`). Here the two journals are read, the migrated program's lines are mapped to the original's, and
both are walked side by side.
"""
