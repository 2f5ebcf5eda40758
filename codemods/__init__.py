"""The codemods: rules that find each FSDP1 construct, report it and rewrite it.

    swap            imports of FSDP1 names: the one edit that is always made
    still_used      FSDP1 names that a program goes on using
    written_out     FSDP1 names that are written out in full
    back_to_torch   names that an earlier run imported from the runtime
    constructor/    the call FSDP(...) and its arguments
    uses/           what is done with a model: state dicts, clipping, accumulation, tests of its class
    by_hand/          what no FSDP2 program can have, or reads differently: found and explained
    assumptions/    what the torch form relies on, and the lines that show otherwise
    libraries/      FSDP1 as Accelerate and other libraries are told to use it

What they share:

    rule            what a rule is, and what it finds
    registry        all codemods and rules, and how a codemod registers itself
    context         one file as a rule sees it: its facts, and how to edit it
    imports         the imports that a file needs and no longer needs
    dictionaries    the keys that a dictionary can have
    silenced        the comments that silence nothing
    edit/           edits of text, call arguments and imports that keep every comment
"""
