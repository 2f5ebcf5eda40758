"""The calls of FSDP1's class, and what they become, in the order in which a call goes through the modules:

- `construction`, with `makers` and `options`: the call and its arguments, also those that a `partial`, `enable_wrap` or a
  dictionary gives it.
- `sharding`, `wrapping`, `precision`, and `arguments` for all others: what each argument is in plain PyTorch, as a `Plain`
  (`plain`, also for a value that a branch chooses), or why it stays on the bridge. `translate` has the tables.
- `recorded`, `recorded_units` and `recorded_checks`: the same by what a run gave.
- `decision`: whether all constructors that may share a model become plain. It asks where a model comes from (`origin`), what it
  contains (`contents`), what FSDP2 refuses (`refused`), and what depends on FSDP1 in the files that it reaches
  (`dependence`, with `before`, `evaluations` and `parameter_names`).
- `form` asks the files for each argument first, then a run; with `layout` it is the plain form as code. `findings`: what is
  reported of each call and argument.
"""
