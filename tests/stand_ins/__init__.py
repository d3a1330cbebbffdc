"""Services that only answer their probes: for tests of what starts, watches and ends them."""
