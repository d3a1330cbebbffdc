"""A region's own Redis Cluster is brought to what its file says while it serves: more primaries, or other servers.

New servers join, the agent puts the shares in force at those that will be primaries, slots move with their keys,
and what the file does not name any more leaves.  Every step is told from what the servers say, so a run that was
interrupted is finished by the next one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.install import Say
from infra.processes import check_wanted, wait_ready
from infra.region.redis_cluster import SLOTS, OwnCluster, ServerView, server_name
from infra.region.resp import ServerError
from infra.region.slot_moves import SlotMove, choose_primaries, plan_moves

SLOTS_AT_ONCE = 64
KEYS_AT_ONCE = 200
MIGRATE_TIMEOUT_MS = 1_500
NODES_LOOK_S = 6.0
"""Nodes and agent read every five seconds who serves what, besides when they are told that they are wrong."""
JOIN_S = 60.0

Holds = Callable[[int], bool]
"""Whether the agent has put session and shares in force at the server on this port."""
EndServer = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """Ports: ``start`` do not run yet, ``primaries`` are to own the slots, ``retire`` are to leave."""

    start: tuple[int, ...]
    primaries: tuple[int, ...]
    retire: tuple[int, ...]
    moves: tuple[SlotMove, ...]

    @property
    def slots(self) -> int:
        return sum(len(move.slots) for move in self.moves)

    def shown(self) -> dict[str, Any]:
        moves = [{"from": move.source, "to": move.target, "slots": len(move.slots)} for move in self.moves]
        return {
            "start": list(self.start),
            "primaries": list(self.primaries),
            "retire": list(self.retire),
            "slots": self.slots,
            "moves": moves,
        }

    @property
    def nothing(self) -> bool:
        return not (self.start or self.retire or self.moves)


@dataclass(slots=True)
class Reshape:
    """``running``: ports of servers that run, of the file's or not.  ``holds_wait_s``: how long the agent is waited
    for, which need not be there: without it a new primary rests at its base after a whole consent."""

    cluster: OwnCluster
    running: Sequence[int]
    holds: Holds
    holds_wait_s: float
    end_server: EndServer
    nodes_look_s: float = NODES_LOOK_S

    def plan(self) -> Plan:
        with self.cluster.talking():
            return self._plan()

    def carry_out(self, say: Say) -> Plan:
        """Raises StartFailed when something does not come up or is waited for too long; what is done stays done."""
        with self.cluster.talking():
            plan = self._plan()
            self._start(plan.start)
            self._until("the servers to know each other", lambda: self._introduce(plan))
            self._until("every replica to have its primary", lambda: self._attach_replicas(plan))
            self._until("the primaries to serve", lambda: self._serve(plan))
            self._wait_for_agent(plan, say)
            self._move_all(plan, say)
            self._until("every replica to have its primary", lambda: self._attach_replicas(plan))
            if plan.moves and plan.retire:
                say("until every node has read who serves what")
                time.sleep(self.nodes_look_s)
            for port in plan.retire:
                say(f"redis on port {port} leaves")
                self._retire(port)
        self.cluster.assemble()
        return plan

    # ---- what is to be done

    def _plan(self) -> Plan:
        view = self._view()
        own = self.cluster.own
        wanted = own.ports()
        serving = {port for port, server in view.items() if server.is_primary and server.slots}
        follows = {port for port, server in view.items() if not server.is_primary}
        primaries = choose_primaries(wanted, serving, follows, own.primaries)
        return Plan(
            start=tuple(port for port in wanted if port not in self.running),
            primaries=tuple(primaries),
            retire=tuple(port for port in sorted({*view, *self.running}) if port not in wanted),
            moves=(*self._begun(view), *self._due(view, primaries)),
        )

    def _view(self) -> dict[int, ServerView]:
        """As the server sees it that knows the most slots dealt."""
        views = [self.cluster.view(port) for port in self.running if self.cluster.answers(port)]
        if not views or max(sum(s.slots for s in view.values()) for view in views) < SLOTS:
            raise ServerError("no running server knows an owner for every slot: `apportion region up` mends it")
        return max(views, key=lambda view: (sum(server.slots for server in view.values()), len(view)))

    def _begun(self, view: Mapping[int, ServerView]) -> list[SlotMove]:
        """Moves that an earlier run has begun: a part of their keys may be there already."""
        port_of = {server.id: port for port, server in view.items()}
        found = []
        for port, server in view.items():
            if server.is_primary and self.cluster.answers(port):
                for slot, target in self.cluster.view(port)[port].leaving:
                    if target in port_of:
                        found.append(SlotMove(port, port_of[target], (slot,)))
        return found

    def _due(self, view: Mapping[int, ServerView], primaries: Sequence[int]) -> list[SlotMove]:
        owned = {port: [slot for part in server.owned for slot in part] for port, server in view.items()}
        for move in self._begun(view):
            owned[move.source] = [slot for slot in owned[move.source] if slot not in move.slots]
            owned[move.target] = [*owned[move.target], *move.slots]
        return plan_moves(owned, primaries)

    # ---- doing it

    def _start(self, ports: Sequence[int]) -> None:
        cluster = self.cluster
        for port in ports:
            configuration = cluster.configure(port)
            process = cluster.directory.start(
                server_name(port), [cluster.binary, str(configuration)], cwd=configuration.parent
            )
            answers = functools.partial(cluster.answers, port)
            wait_ready(cluster.directory, process, answers, patience_s=20.0)

    def _until(self, what: str, step: Callable[[], bool]) -> None:
        self.cluster.until(time.monotonic() + JOIN_S, what, step)

    def _introduce(self, plan: Plan) -> bool:
        """Whether everybody who is to stay knows everybody."""
        own, view = self.cluster.own, self._view()
        host = next(port for port, server in view.items() if server.is_primary and server.slots)
        for port in plan.primaries:
            if port in view and not view[port].is_primary:
                self.cluster.call(port, "CLUSTER", "RESET", "SOFT")  # a replica so far: empty, and alone
        everyone = {*own.ports(), *(port for port in view if self.cluster.answers(port))}
        for port in everyone - self.cluster.view(host).keys():
            self.cluster.call(host, "CLUSTER", "MEET", own.host, port, own.bus_port(port))
        known = all(everyone <= self.cluster.view(port).keys() for port in everyone)
        if not known:
            time.sleep(0.1)
        return known

    def _attach_replicas(self, plan: Plan) -> bool:
        """Whether every server that is to be a replica follows one of the primaries, and is in sync."""
        view = self._view()
        followed = {view[port].id: 0 for port in plan.primaries}
        stay = [port for port in self.cluster.own.ports() if port not in plan.primaries and not view[port].slots]
        most = self.cluster.own.replicas_each
        unplaced = []
        for port in stay:
            primary = view[port].primary_id
            if primary in followed and followed[primary] < most:
                followed[primary] += 1
            else:
                unplaced.append(port)
        for port in unplaced:
            fewest = min(followed, key=lambda id: followed[id])
            self.cluster.call(port, "CLUSTER", "REPLICATE", fewest)
            followed[fewest] += 1
        roles = [self.cluster.info(port, "INFO replication") for port in stay]
        return not unplaced and all(
            role["role"] == "slave" and role["master_link_status"] == "up" for role in roles
        )

    def _serve(self, plan: Plan) -> bool:
        """Whether all of them take keys: one that has just joined does not for some seconds."""
        return all(self.cluster.info(port, "CLUSTER INFO")["cluster_state"] == "ok" for port in plan.primaries)

    def _wait_for_agent(self, plan: Plan, say: Say) -> None:
        """Slots that move to a primary without a session would have their floor there."""
        view = self._view()
        new = [port for port in plan.primaries if not view[port].slots]
        if not new or all(map(self.holds, new)):
            return
        say(f"until the shares are in force on port{'s' if len(new) > 1 else ''} {', '.join(map(str, new))}")
        end = time.monotonic() + self.holds_wait_s
        while not all(map(self.holds, new)):
            check_wanted()
            if time.monotonic() >= end:
                say("the agent has not said so in time: what moves there has its base")
                return
            time.sleep(0.2)

    def _move_all(self, plan: Plan, say: Say) -> None:
        moved, told, view = 0, -1, self._view()
        for move in plan.moves:
            for begin in range(0, len(move.slots), SLOTS_AT_ONCE):
                check_wanted()
                slots = move.slots[begin : begin + SLOTS_AT_ONCE]
                self._move(view, move.source, move.target, slots)
                moved += len(slots)
                if moved * 10 // plan.slots > told:
                    told = moved * 10 // plan.slots
                    say(f"{moved:,} of {plan.slots:,} slots moved")

    def _move(self, view: Mapping[int, ServerView], source: int, target: int, slots: Sequence[int]) -> None:
        call_all = self.cluster.call_all
        source_id, target_id = view[source].id, view[target].id
        call_all(target, [("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id) for slot in slots])
        call_all(source, [("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id) for slot in slots])
        left = list(slots)
        while left:  # from here on a key that is not at the source any more is made at the target
            keys = call_all(source, [("CLUSTER", "GETKEYSINSLOT", slot, KEYS_AT_ONCE) for slot in left])
            for names in keys:
                if names:
                    self._until(
                        f"keys to go from port {source} to {target}", self._handing_over(source, target, names)
                    )
            left = [slot for slot, names in zip(left, keys, strict=True) if len(names) == KEYS_AT_ONCE]
        # The target first: whoever is told by the source to go there must be served.
        others = [port for port, server in view.items() if server.is_primary and port not in (source, target)]
        for port in (target, source, *others):
            try:
                call_all(port, [("CLUSTER", "SETSLOT", slot, "NODE", target_id) for slot in slots])
            except ServerError as error:
                # Who has lost its last slot follows the one that took it, and needs to be told no more.
                if port == target or "only with masters" not in str(error):
                    raise

    def _handing_over(self, source: int, target: int, keys: Sequence[str]) -> Callable[[], bool]:
        """Refused while the target has not heard of the others for a while: said again, without what has gone."""

        def hand_over() -> bool:
            self.cluster.call(source, *self._migrate(target, keys))
            return True

        return hand_over

    def _migrate(self, target: int, keys: Sequence[str]) -> list[str | int]:
        username, password = self.cluster.login()
        access: list[str | int] = []
        if password is not None:
            access = ["AUTH2", username, password] if username is not None else ["AUTH", password]
        to: list[str | int] = [self.cluster.own.host, target, "", 0, MIGRATE_TIMEOUT_MS]
        return ["MIGRATE", *to, "REPLACE", *access, "KEYS", *keys]

    def _retire(self, port: int) -> None:
        view = self._view()
        if port in view:
            if view[port].slots:
                raise ServerError(f"the server on port {port} still owns slots")
            for other in self.cluster.own.ports():
                if port in self.cluster.view(other):
                    self.cluster.call(other, "CLUSTER", "FORGET", view[port].id)
        self.end_server(port)
