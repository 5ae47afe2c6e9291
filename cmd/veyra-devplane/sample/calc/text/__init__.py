"""Sums as text."""
