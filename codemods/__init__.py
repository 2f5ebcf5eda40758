"""The codemods: one module a construct of FSDP1, each with its rules, their examples, and the code that finds and edits.

The constructs:

    constructor, plain_form, runtime_form   the call FSDP(...), and the two forms that it can take
    arguments/                              its arguments, one module an argument
    indirect, enable_wrap                   models that something else than a call of the class wraps
    dynamic_names                           FSDP1 reached by a string
    class_checks, asked_for                 the class in tests and annotations; models that are asked for its methods
    wrapped_module, fsdp_modules            model.module; the units of a model
    loop/                                   the training loop: accumulation, clipping, scaling, the forward by its name
    optimizers/                             an optimizer that is built too early
    offload_backend, full_precision_eval    what offloaded models and evaluation need
    summon_full_params, apply_to_modules    whole parameters for a while
    checkpoints/                            state dicts of models and optimizers, their types, and the files they go to
    surroundings/                           what stands around a model and means something else when it is FSDP2's
    possible_uses                           methods of what may be a model
    composable, tensor_parallel             torch's other interfaces to FSDP1
    private_parts                           FSDP1's inside, name by name
    by_hand                                 what is found and explained, and left to people
    names, imports                          names that stay, and the imports of them all; these run last

Programs that use FSDP2 already:

    contract/               what breaks its contract, one module a part of it: found by `check --fsdp2`, never rewritten

What they share:

    rule                    what a rule is, and what it says of one construct (a draft: a finding with its edits)
    registry                all rules by code
    context                 one file as a codemod sees it: its facts, its syntax tree, the names that an edit may need
    constructor_call, plan  one constructor call: its arguments bound to FSDP1's signature; what becomes of each
    expressions             what an expression says by itself
    annotations             names in annotations, and in those that stand in quotes
    executed                which functions of the project a piece of code may run
    rank_guards             which code one rank alone runs
    syntax                  from positions in the facts to LibCST nodes
    apply                   all edits of a file in one pass; `mark` adds comments at what is left by hand
    edit/                   editors for call arguments, imports and statements that keep every comment
    coverage                every construct as a line of a program: the table of docs/coverage.md is made from it
    command                 each codemod as a command of LibCST's own runner
"""
