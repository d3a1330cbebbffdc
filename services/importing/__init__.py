"""Rules out of other limiters' configurations.  Pure.

A configuration is taken whole or refused whole, with every construct that has no counterpart by its place.  What
has no effect on decisions is noted.
"""
