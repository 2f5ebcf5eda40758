"""Shapes are read by a test, and are none themselves."""

collect_ignore_glob = ["shapes/*"]
