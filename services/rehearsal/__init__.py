"""Rehearsal: what a rule set would have done to the requests of an access log.

lines (:mod:`logs`) -> requests (:mod:`formats`, :mod:`attributes`) -> in the order of their times (:mod:`order`)
-> decisions (:mod:`replay`: the algorithms that nodes run, on the log's own clock) -> counts (:mod:`tally`) -> a
report (:mod:`report`) that is shown as a table, as JSON or as a page.  Only :mod:`logs` does input and output.

Every table is bounded: a log of any length takes the same memory, and the report says where a bound was met.
"""
