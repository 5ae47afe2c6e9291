"""The basic sums."""


def add(a, b):
    return a - b


def negate(a):
    return -a
