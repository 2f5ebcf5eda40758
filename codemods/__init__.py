"""The codemods: one module a construct of FSDP1, each with its rules, their examples, and the code that finds and edits.

rule       what a rule is, and what it says of one construct (a draft: a finding with its edits)
registry   all rules by code
context    one file as a codemod sees it: its facts, its syntax tree, the names that an edit may need
plan       one constructor call: its arguments bound to FSDP1's signature, and what becomes of each
syntax     from positions in the facts to LibCST nodes
apply      all edits of a file in one pass
edit/      editors for call arguments, imports and statements that keep every comment
"""
