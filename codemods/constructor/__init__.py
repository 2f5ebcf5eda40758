"""The calls of FSDP1's class, and what they become. Each is decided by itself, in the order of these modules:

- `construction`: the call and its arguments, also those of a dictionary that is unpacked.
- `rows`: a row for each argument, with what the runtime does with it and its translation where the file shows the value;
  `sharding`, `wrapping` and `precision` have those that take more than a few lines.
- `silent`: what would change in silence without FSDP1's wrapper, found by a search by name.
- `layout`: the code, which the rows add to. `form`: what becomes of a call, and what is reported of it. `assumptions`: what the
  torch form relies on where `uses/assumed` names no line.
"""
