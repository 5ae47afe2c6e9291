"""How a sum is shown."""

from calc.ops import add


def show(a, b):
    return f"{a} + {b} = {add(a, b)}"
