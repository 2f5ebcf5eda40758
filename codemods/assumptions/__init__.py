"""What the torch form relies on, where FSDP1 did more than `fully_shard` does.

table        each assumption: its condition, what changes where it does not hold, how severe that is
constructor  those that a constructor's findings name, because no line of the program shows that they matter
lines        lines that show that an assumption does not hold
evaluations  evaluations that record gradients
"""
