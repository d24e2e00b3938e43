"""The paged KV cache by itself: reuse, eviction, pins and leases, and reads that ask nobody."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.kv_cache import Block, KvCache


def fill(block: Block, ids: Sequence[int], prefix: int = 1) -> Block:
    block.prefix, block.ids = prefix, list(ids)
    return block


def take(cache: KvCache, count: int) -> list[Block]:
    blocks = cache.allocate(count)
    assert blocks is not None
    return blocks


def test_all_counters_return_to_zero_when_blocks_are_given_back() -> None:
    cache = KvCache(4, 2)
    blocks = take(cache, 3)

    assert (cache.used, cache.free) == (3, 1)
    cache.release(blocks)

    assert (cache.used, cache.free, cache.pinned) == (0, 4, 0)


def test_more_blocks_than_are_free_are_refused_whole() -> None:
    cache = KvCache(2, 2)
    take(cache, 1)

    assert cache.allocate(2) is None
    assert cache.free == 1


def test_a_published_block_is_found_again_after_its_release() -> None:
    cache = KvCache(4, 2)
    block = fill(take(cache, 1)[0], (5, 6))
    cache.publish(block, 77, None)
    cache.release([block])

    found = cache.match([77, 78])

    assert found == [block]
    assert cache.used == 1


def test_a_match_ends_at_the_first_key_that_is_not_there() -> None:
    cache = KvCache(4, 2)
    first, second = take(cache, 2)
    cache.publish(first, 1, None)
    cache.publish(second, 3, 2)

    assert cache.match([1, 2, 3]) == [first]


def test_blocks_without_a_reusable_prefix_are_evicted_first_and_a_prefix_from_its_tail() -> None:
    cache = KvCache(3, 2)
    head, tail, plain = take(cache, 3)
    cache.publish(head, 1, None)
    cache.publish(tail, 2, 1)
    cache.release([plain])
    cache.release([head, tail])

    assert take(cache, 2) == [plain, tail]
    assert cache.match([1]) == [head]


def test_without_reuse_nothing_is_found() -> None:
    cache = KvCache(2, 2, reuse=False)
    cache.publish(take(cache, 1)[0], 1, None)

    assert cache.match([1]) == []


def test_a_pin_holds_until_its_lease_ends() -> None:
    cache = KvCache(2, 2)
    cache.pin("p", take(cache, 2), expires_at=30.0)

    assert (cache.pinned, cache.next_expiry(), cache.expire(29.9)) == (2, 30.0, [])
    assert cache.expire(30.0) == ["p"]
    assert (cache.used, cache.pinned, cache.expired_pins) == (0, 0, 1)


def test_a_heartbeat_prolongs_a_lease_and_never_shortens_it() -> None:
    cache = KvCache(1, 2)
    cache.pin("p", take(cache, 1), expires_at=30.0)

    cache.extend("p", 20.0)
    assert cache.next_expiry() == 30.0
    cache.extend("p", 45.0)

    assert cache.next_expiry() == 45.0
    assert not cache.extend("other", 50.0)


def test_unpinning_twice_frees_once() -> None:
    cache = KvCache(1, 2)
    cache.pin("p", take(cache, 1), expires_at=None)

    assert cache.unpin("p")
    assert not cache.unpin("p")
    assert cache.free == 1


def test_a_second_pin_of_a_name_does_not_leak_the_first() -> None:
    cache = KvCache(2, 2)
    cache.pin("p", take(cache, 1), expires_at=None)
    cache.pin("p", take(cache, 1), expires_at=None)

    cache.unpin("p")

    assert cache.used == 0


def test_a_read_takes_what_a_block_holds_now_whoever_owns_it() -> None:
    cache = KvCache(1, 2)
    block = fill(take(cache, 1)[0], (5, 6))
    mine = cache.read([1], 2)
    cache.release([block])

    freed = cache.read([1], 2)
    fill(take(cache, 1)[0], (7, 8))
    foreign = cache.read([1], 2)

    assert freed == mine
    assert foreign != mine


def test_a_read_of_part_of_a_block_does_not_see_the_rest() -> None:
    cache = KvCache(2, 4)
    short, long = take(cache, 2)
    fill(short, (5, 6))
    fill(long, (5, 6, 7))

    assert cache.read([short.id], 2) == cache.read([long.id], 2)
    assert cache.read([short.id], 3) != cache.read([long.id], 3)


def test_a_listener_hears_what_is_stored_removed_and_cleared() -> None:
    heard: list[object] = []

    class Listener:
        def stored(self, key: int, parent: int | None, ids: Sequence[int]) -> None:
            heard.append(("stored", key, parent, list(ids)))

        def removed(self, key: int) -> None:
            heard.append(("removed", key))

        def cleared(self) -> None:
            heard.append("cleared")

    cache = KvCache(1, 2)
    cache.listener = Listener()
    block = fill(take(cache, 1)[0], (5, 6))
    cache.publish(block, 9, 8)
    assert not cache.clear()
    cache.release([block])
    cache.release(take(cache, 1))
    cache.clear()

    assert heard == [("stored", 9, 8, [5, 6]), ("removed", 9), "cleared"]
