"""Programs that test the rules beside the examples of their pages, by the code of the rule."""

from ..pages import Example
from . import constructor, imports, left, libraries, uses

_ALL = (constructor, imports, left, libraries, uses)
ALSO: dict[str, tuple[Example, ...]] = {code: e for each in _ALL for code, e in each.ALSO.items()}
# In these the rule has nothing to say.
QUIET: dict[str, tuple[Example, ...]] = {code: e for each in _ALL for code, e in each.QUIET.items()}
