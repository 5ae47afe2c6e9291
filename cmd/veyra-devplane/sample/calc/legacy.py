"""Old names; nothing uses them any more."""

from calc.ops import add

plus = add
