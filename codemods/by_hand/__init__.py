"""Code that no rewrite can keep: it is found, and the user changes it by hand."""
