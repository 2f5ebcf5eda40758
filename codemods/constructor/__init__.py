"""The calls of FSDP1's class, and what they become. Each argument is translated by itself, by its expression.

- `construction`: the call and its arguments, also those of a dictionary that is unpacked. `flow`: all that can make the value
  of an argument, followed back through names, branches, tables and functions.
- `rows`: a row for each argument, with its rule and the function that writes it. `sharding` and `given_meshes` (which ranks
  shard), `wrapping` and `unit_modules` (which modules are units), `precision`, `devices` (where the model is) and `from_rank_0`
  (the values that it begins with) have the longer ones.
- `conditions`: when a strategy is one of some members, in the shape of the expression that chooses it. `options`: the
  `MixedPrecision` objects of a run that are rewritten where they are made.
- `policies`: whether a policy counts parameters. `empties`: a `param_init_fn` that only gives memory.
- `code`: what the rows add to. `layout`: where it stands, `functions`: a function of it, `remarks`: its comments.
- `root`: whether the root frees its parameters after forward, which asks `order`: the `statements` of the
  program in their order, the `events` in them, and the `identity` of the model. `meta`: whether this call's model is on the
  meta device.
- `model_classes`: the classes of the program that make the model. `mixed`: whether some parameters are no DTensors.
- `form`: what becomes of a call, and what is reported of it. `outcome`: that in one object. `by_units`: calls whose arguments
  only a run knows. `silent`: what would change without an error if there were no wrapper, found by a search by
  name.
"""
