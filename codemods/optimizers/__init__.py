"""An optimizer that is built before its model is sharded, and who else keeps the parameters that a program takes from a model.

order               the rule
kept_parameters     who keeps the parameters that a program takes from a model
kept_elsewhere      the same, where another method, function or container is between
sharding_places     where a model becomes sharded
straight_line       which statements can go behind a later one; statement_names: what they read and bind
remapping           an optimizer that is given the sharded parameters
"""
