"""Who serves a slot, out of views that disagree."""

from __future__ import annotations

from redis.crc import key_slot

from regional_limiter.store.topology import hash_slot_of, merge, parse_nodes, primaries_in


def line(port: int, flags: str, epoch: int, slots: str = "", *, host: str = "10.0.0.1", master: str = "-") -> str:
    return f"{port:040x} {host}:{port}@{port + 100} {flags} {master} 0 0 {epoch} connected {slots}".rstrip()


def view(*lines: str, asked: str = "10.0.0.1:1") -> list:  # type: ignore[type-arg]
    return parse_nodes("\n".join(lines) + "\n", asked)


def test_a_tag_lies_in_the_slot_that_redis_computes() -> None:
    for tag in ("a", "user:42", "AbC-_9", ""):
        assert hash_slot_of(tag) == key_slot(tag.encode())


def test_a_server_that_does_not_know_its_own_host_is_where_it_was_asked() -> None:
    found = parse_nodes(line(7001, "myself,master", 1, "0-5", host=""), "redis-0.svc:7001")
    assert found[0].address == "redis-0.svc:7001"


def test_a_hostname_behind_the_address_does_not_hide_it() -> None:
    text = "aa 10.0.0.1:7001@17001,redis-0.example slave bb 0 0 3 connected"
    assert parse_nodes(text, "x:1")[0].address == "10.0.0.1:7001"


def test_slots_that_are_on_the_move_are_no_claim() -> None:
    found = view(line(1, "myself,master", 1, "0-2 7 [5->-bb] [6-<-cc]"))
    assert found[0].slots == ((0, 3), (7, 8))


def test_the_higher_epoch_has_the_slot_whoever_is_asked_first() -> None:
    before = view(line(1, "myself,master", 1, "0-16383"), line(2, "slave", 1))
    after = view(line(2, "myself,master", 5, "0-16383"), line(1, "master,fail", 1))
    for views in ([before, after], [after, before]):
        topology = merge(views)
        assert set(topology.owners) == {"10.0.0.1:2"}
        assert topology.primaries == ("10.0.0.1:2",)
        assert topology.servers == {"10.0.0.1:1", "10.0.0.1:2"}


def test_at_one_epoch_a_server_knows_its_own_slots_best() -> None:
    stale = view(line(1, "master", 3, "0-16383"), line(2, "myself,master", 2))
    own = view(line(1, "myself,master", 3, "0-99"), line(2, "master", 2))
    assert merge([stale, own]).owners[100] == ""
    assert merge([own, stale]).owners[100] == ""


def test_servers_that_cannot_be_addressed_are_left_out() -> None:
    assert view(line(1, "master,noaddr", 1, "0-5"), line(2, "handshake", 0)) == []


def test_a_listing_names_a_cut_off_primary_that_still_claims_slots() -> None:
    majority = view(line(2, "myself,master", 5, "0-16383"), line(1, "master,fail", 1))
    cut_off = view(line(1, "myself,master", 1, "0-16383"), line(2, "slave,fail", 1))
    assert primaries_in([majority]) == {"10.0.0.1:2"}
    assert primaries_in([majority, cut_off]) == {"10.0.0.1:1", "10.0.0.1:2"}


def test_a_listing_names_a_new_primary_before_it_has_slots() -> None:
    assert primaries_in([view(line(1, "myself,master", 1, "0-5"), line(9, "master", 0))]) == {
        "10.0.0.1:1",
        "10.0.0.1:9",
    }
