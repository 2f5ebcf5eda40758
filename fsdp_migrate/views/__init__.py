"""Views of one report: they print it and change nothing."""
