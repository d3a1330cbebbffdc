"""The whole system in one virtual world: several regions, their nodes and requests, one seed, no real clock.

What runs here is the real code: the agent and the leader with their loops, the protocol, the policy, the codec,
the store's enforcement points and buckets, plans, token leases, denials and the fallback of nodes.  Simulated are
time, chance, the hub with its links, and the processes that can be stopped and killed.  The same seed gives the
same world (in one process; over several when PYTHONHASHSEED is the same: sets of texts have an order of their own).

    world = World(
        {"us-east": 2_000, "eu-west": 32_000, "ap-south": 100_000},   # one-way delay to the hub, us
        rules,                                                        # a rule set (a mapping, as PUT takes it)
        seed=1,
    )
    world.settle()                                    # a leader, bases done, sessions alive
    world.offer("us-east", traces.steady(1_500))      # tokens a second, as a function of the world's time
    world.run(60_000_000)                             # us; or world.run_until(at_us)
    world.shares(key)                                 # region -> share in force now, out of 10,000
    world.tallies["us-east"].admitted                 # tokens, beside .offered
    world.problems()                                  # invariants and bounds that did not hold: []

``world.keys``: the keys seen so far.  ``world.watchers``: called with every :class:`Decided` check (time, region,
cost, admitted, what each rule said).  ``world.hub.messages`` and ``.bytes``: by topic; the ``.up`` and ``.down`` of
``world.regions[name].link`` count what that link carried.  ``world.log``: every record that was written.

Requests are the real decisions, some 50 us each: for long figures ask for several tokens at a time (a ``Check``
with a cost), and set ``judged_every_us=0`` where the invariants are not what is asked for.

Faults: ``cut(region, up=, down=)``, ``heal``, ``hub_down``, ``hub_up``, ``crash_leader``, and by hand on what
``world.regions[name]`` holds (link laws, shards and their clocks, processes, nodes).

``judge`` looks at every share after each write to an enforcement point, and every ``judged_every_us`` besides
(V1, V2, V6); ``bounds`` holds an independent checker of the admitted tokens for each key of a global rule.
"""

from global_sync.simulation import traces
from global_sync.simulation.bound import BoundChecker
from global_sync.simulation.judge import Broken, Judge
from global_sync.simulation.links import Law, Link, Way
from global_sync.simulation.traces import Trace
from global_sync.simulation.world import Decided, Tally, World

__all__ = ["BoundChecker", "Broken", "Decided", "Judge", "Law", "Link", "Tally", "Trace", "Way", "World", "traces"]
