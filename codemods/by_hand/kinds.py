"""What a value is that a program takes from a sharded model, and what each step of syntax makes of it."""

import ast
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """What a value is."""

    PARAMETERS = "parameters"
    NAMED = "pairs of a name and a parameter"
    BY_NAME = "a dictionary of parameters by their names"
    OWN = "a dictionary of parameters by other keys"
    LISTS = "several lists of parameters"
    LISTS_BY_KEY = "pairs of a key and a list of parameters"
    NAMES = "names"
    PAIR = "a name and a parameter"
    PARAMETER = "a parameter"
    NAME = "a name"
    MODULES = "modules"
    NAMED_MODULES = "pairs of a name and a module"
    NAMED_MODULE = "a name and a module"
    MODULE = "a module"
    ALL = "modules from among all, which wrappers were as well"
    NAMED_ALL = "pairs of a name and a module from among all"
    ONE_OF_ALL = "a module from among all"
    NAMED_ONE = "a name and a module from among all"
    STATES = "an optimizer's states by parameter"
    STATE_OF_EACH = "an optimizer's states"
    STATE = "an optimizer's state of one parameter"
    GROUPS = "an optimizer's groups"
    GROUP = "a group of an optimizer's"
    STATE_DICT = "an optimizer's state dict"


class Leak(NamedTuple):
    """A use that may mean something else under FSDP2: how values are used there that `USES` in taken_out.py names."""

    node: ast.expr | ast.stmt
    use: str


# The kinds of the items of an iterable, where its items have parts by place; None for what is safe.
ITEMS: dict[Kind, tuple[Kind | None, ...]] = {
    Kind.PARAMETERS: (Kind.PARAMETER,),
    Kind.NAMED: (Kind.NAME, Kind.PARAMETER),
    Kind.BY_NAME: (Kind.NAME,),
    Kind.OWN: (None, Kind.PARAMETER),
    Kind.LISTS: (Kind.PARAMETERS,),
    Kind.LISTS_BY_KEY: (None, Kind.PARAMETERS),
    Kind.NAMES: (Kind.NAME,),
    Kind.MODULES: (Kind.MODULE,),
    Kind.NAMED_MODULES: (Kind.NAME, Kind.MODULE),
    Kind.MODULE: (Kind.MODULE,),  # a container of modules
    Kind.ALL: (Kind.ONE_OF_ALL,),
    Kind.NAMED_ALL: (Kind.NAME, Kind.ONE_OF_ALL),
    Kind.STATE_OF_EACH: (Kind.STATE,),
    Kind.STATES: (None, Kind.STATE),
    Kind.STATE: (None, Kind.PARAMETER),
    Kind.GROUPS: (Kind.GROUP,),
}
# An item as a whole: `for item in model.named_parameters()`.
ITEM = {
    Kind.NAMED: Kind.PAIR,
    Kind.NAMED_MODULES: Kind.NAMED_MODULE,
    Kind.NAMED_ALL: Kind.NAMED_ONE,
    **{kind: parts[0] for kind, parts in ITEMS.items() if len(parts) == 1},
}
PARTS = {
    Kind.PAIR: (Kind.NAME, Kind.PARAMETER),
    Kind.NAMED_MODULE: (Kind.NAME, Kind.MODULE),
    Kind.NAMED_ONE: (Kind.NAME, Kind.ONE_OF_ALL),
}
# What an index or a key gives.
AT = {
    Kind.PARAMETERS: Kind.PARAMETER,
    Kind.NAMED: Kind.PAIR,
    Kind.BY_NAME: Kind.PARAMETER,
    Kind.OWN: Kind.PARAMETER,
    Kind.LISTS: Kind.PARAMETERS,
    Kind.NAMES: Kind.NAME,
    Kind.MODULES: Kind.MODULE,
    Kind.NAMED_MODULES: Kind.NAMED_MODULE,
    Kind.MODULE: Kind.MODULE,
    Kind.ALL: Kind.ONE_OF_ALL,
    Kind.NAMED_ALL: Kind.NAMED_ONE,
    Kind.ONE_OF_ALL: Kind.MODULE,
    Kind.STATES: Kind.STATE,
    Kind.STATE_OF_EACH: Kind.STATE,
    Kind.STATE: Kind.PARAMETER,
    Kind.GROUPS: Kind.GROUP,
}
# What these keys give, and no others.
AT_KEY = {
    (Kind.GROUP, "params"): Kind.PARAMETERS,
    (Kind.STATE_DICT, "state"): Kind.STATES,
    (Kind.STATE_DICT, "param_groups"): Kind.GROUPS,
}
# What a method gives.
GIVES: dict[Kind, dict[str, Kind]] = {
    Kind.BY_NAME: {
        "copy": Kind.BY_NAME,
        "get": Kind.PARAMETER,
        "items": Kind.NAMED,
        "keys": Kind.NAMES,
        "pop": Kind.PARAMETER,
        "values": Kind.PARAMETERS,
    },
    Kind.OWN: {
        "get": Kind.PARAMETER,
        "items": Kind.OWN,
        "pop": Kind.PARAMETER,
        "values": Kind.PARAMETERS,
    },
    Kind.PARAMETERS: {
        "copy": Kind.PARAMETERS,
        "pop": Kind.PARAMETER,
        "popleft": Kind.PARAMETER,
        "values": Kind.PARAMETERS,
    },
    Kind.LISTS: {
        "get": Kind.PARAMETERS,
        "items": Kind.LISTS_BY_KEY,
        "pop": Kind.PARAMETERS,
        "values": Kind.LISTS,
    },
    Kind.NAMED: {"pop": Kind.PAIR, "popleft": Kind.PAIR},
    Kind.MODULES: {"pop": Kind.MODULE, "popleft": Kind.MODULE},
    Kind.ALL: {"pop": Kind.ONE_OF_ALL, "popleft": Kind.ONE_OF_ALL},
    Kind.MODULE: {
        "children": Kind.MODULES,
        "get_parameter": Kind.PARAMETER,
        "get_submodule": Kind.MODULE,
        "modules": Kind.ALL,
        "named_children": Kind.NAMED_MODULES,
        "named_modules": Kind.NAMED_ALL,
        "named_parameters": Kind.NAMED,
        "parameters": Kind.PARAMETERS,
    },
    Kind.STATES: {"get": Kind.STATE, "items": Kind.STATES, "values": Kind.STATE_OF_EACH},
    Kind.STATE: {"get": Kind.PARAMETER, "items": Kind.STATE, "values": Kind.PARAMETERS},
}
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp
OF_MODULES = frozenset({Kind.MODULES, Kind.NAMED_MODULES, Kind.ALL, Kind.NAMED_ALL})
ONE_MODULE = frozenset({Kind.MODULE, Kind.ONE_OF_ALL})
OF_PARAMETERS = frozenset({Kind.PARAMETERS, Kind.NAMED, Kind.BY_NAME, Kind.OWN})
BY_KEY = frozenset(
    {Kind.BY_NAME, Kind.OWN, Kind.STATES, Kind.STATE, Kind.GROUPS, Kind.GROUP, Kind.STATE_DICT}
)
# What several of them are.
SEVERAL = {
    Kind.PARAMETER: Kind.PARAMETERS,
    Kind.NAME: Kind.NAMES,
    Kind.MODULE: Kind.MODULES,
    Kind.ONE_OF_ALL: Kind.ALL,
}
