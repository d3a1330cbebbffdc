"""The share protocol in a world of faults: the real state machines, one seed, invariants after every event."""
