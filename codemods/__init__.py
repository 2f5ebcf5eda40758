"""The codemods: one module a construct of FSDP1, each with its rules, their examples, and the code that finds and edits.

The constructs:

    constructor, plain_form, runtime_form   the call FSDP(...), and the two forms that it can take
    arguments/                              its arguments, one module an argument
    class_checks, wrapped_module            the class in tests and annotations; model.module
    no_sync, clip_grad_norm                 the training loop
    state_dict, state_dict_type             checkpoints
    possible_uses                           methods of what may be a model
    optimizer_order                         an optimizer that is built too early
    dynamic_names                           FSDP1 reached by a string
    by_hand                                 what is found and explained, and left to people
    names, imports                          names that stay, and the imports of them all; these run last

What they share:

    rule       what a rule is, and what it says of one construct (a draft: a finding with its edits)
    registry   all rules by code
    context    one file as a codemod sees it: its facts, its syntax tree, the names that an edit may need
    plan       one constructor call: its arguments bound to FSDP1's signature, and what becomes of each
    syntax     from positions in the facts to LibCST nodes
    apply      all edits of a file in one pass; `mark` adds comments at what is left by hand
    edit/      editors for call arguments, imports and statements that keep every comment
    coverage   every construct as a line of a program: the table of docs/coverage.md is made from it
    command    each codemod as a command of LibCST's own runner
"""
