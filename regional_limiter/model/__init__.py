"""The language that every part of the project shares: rules, keys, shares, decisions. Pure and frozen."""
