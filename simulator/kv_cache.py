"""A paged KV cache: blocks with reference counts, prefix reuse, least-recently-used eviction, and pins with leases.

A block remembers what was really computed into it. Whoever reads a block by its number after it was freed and handed to
somebody else gets that other content, without an error, as a one-sided read of GPU memory does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from simulator.digests import digest_of


class CacheListener(Protocol):
    """Hears which full blocks the prefix cache gained and lost."""

    def stored(self, key: int, parent: int | None, ids: Sequence[int]) -> None: ...

    def removed(self, key: int) -> None: ...

    def cleared(self) -> None: ...


@dataclass(slots=True, eq=False)
class Block:
    """`prefix` and `ids` are the content: what its slots were computed from. `key` names it in the prefix cache."""

    id: int
    holders: int = 0
    key: int | None = None
    prefix: int = 0
    ids: list[int] = field(default_factory=list)

    def content(self, slots: int) -> int:
        """A digest of the first `slots` slots; fewer were filled: another digest than any full reader expects."""
        return digest_of(self.prefix, self.ids[:slots])


@dataclass(slots=True)
class _Pin:
    blocks: list[Block]
    expires_at: float | None


class KvCache:
    """`blocks` blocks of `block_size` slots. Block ids start at 1: real engines keep 0 for themselves."""

    def __init__(self, blocks: int, block_size: int, reuse: bool = True) -> None:
        self.block_size = block_size
        self.total = blocks
        self.reuse = reuse
        self.listener: CacheListener | None = None
        self.hits = 0
        self.queries = 0
        self.expired_pins = 0
        self._blocks = [Block(i) for i in range(1, blocks + 1)]
        self._free: OrderedDict[int, Block] = OrderedDict((block.id, block) for block in self._blocks)
        self._by_key: dict[int, Block] = {}
        self._pins: dict[str, _Pin] = {}

    # ---- counters

    @property
    def free(self) -> int:
        """Blocks that nobody holds; those among them that hold a reusable prefix are evicted last."""
        return len(self._free)

    @property
    def used(self) -> int:
        return self.total - len(self._free)

    @property
    def pinned(self) -> int:
        return sum(len(pin.blocks) for pin in self._pins.values())

    @property
    def pins(self) -> int:
        return len(self._pins)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # ---- holding blocks

    def match(self, keys: Iterable[int]) -> list[Block]:
        """The longest cached run of these keys, held for the caller."""
        found: list[Block] = []
        if self.reuse:
            for key in keys:
                block = self._by_key.get(key)
                if block is None:
                    break
                found.append(block)
        for block in found:
            self._hold(block)
        return found

    def allocate(self, count: int) -> list[Block] | None:
        """`count` empty blocks, evicting the least recently used; None when there are not so many."""
        if count > len(self._free):
            return None
        taken = []
        for _ in range(count):
            _, block = self._free.popitem(last=False)
            self._forget(block)
            block.holders, block.prefix, block.ids = 1, 0, []
            taken.append(block)
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Gives blocks back, the last first, so that the tail of a prefix is evicted before its head."""
        for block in reversed(blocks):
            block.holders -= 1
            if block.holders == 0:
                self._free[block.id] = block

    def publish(self, block: Block, key: int, parent: int | None) -> None:
        """Makes a full block reusable under `key`, unless another block already is."""
        if not self.reuse or block.key is not None or key in self._by_key:
            return
        block.key = key
        self._by_key[key] = block
        if self.listener is not None:
            self.listener.stored(key, parent, block.ids)

    def clear(self) -> bool:
        """Empties the prefix cache. False, and nothing done, while any block is held."""
        if self.used:
            return False
        for block in self._blocks:
            block.key = None
        self._by_key.clear()
        if self.listener is not None:
            self.listener.cleared()
        return True

    # ---- pins

    def pin(self, name: str, blocks: list[Block], expires_at: float | None) -> None:
        """Takes over the caller's hold on `blocks` until `expires_at` (None: until released).

        A pin of the same name is released.
        """
        self.unpin(name)
        self._pins[name] = _Pin(blocks, expires_at)

    def extend(self, name: str, expires_at: float) -> bool:
        """Prolongs a lease, never shortens it. False when there is no such pin (any more)."""
        pin = self._pins.get(name)
        if pin is None:
            return False
        if pin.expires_at is not None:
            pin.expires_at = max(pin.expires_at, expires_at)
        return True

    def unpin(self, name: str) -> bool:
        """Releases a pin. False when there is none: it expired, or was released before."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return False
        self.release(pin.blocks)
        return True

    def has_pin(self, name: str) -> bool:
        return name in self._pins

    def next_expiry(self) -> float | None:
        return min((pin.expires_at for pin in self._pins.values() if pin.expires_at is not None), default=None)

    def expire(self, now: float) -> list[str]:
        """Releases every pin whose lease is over; their names."""
        over = [name for name, pin in self._pins.items() if pin.expires_at is not None and pin.expires_at <= now]
        for name in over:
            self.unpin(name)
        self.expired_pins += len(over)
        return over

    # ---- the peer's read

    def read(self, block_ids: Sequence[int], tokens: int) -> list[int]:
        """Digests of what these blocks hold now, as a reader of `tokens` tokens takes them: no ownership is checked."""
        contents = []
        for place, block_id in enumerate(block_ids):
            slots = min(self.block_size, tokens - place * self.block_size)
            known = 1 <= block_id <= self.total
            contents.append(self._blocks[block_id - 1].content(max(slots, 0)) if known else 0)
        return contents

    def _hold(self, block: Block) -> None:
        if block.holders == 0:
            del self._free[block.id]
        block.holders += 1

    def _forget(self, block: Block) -> None:
        if block.key is None:
            return
        if self._by_key.get(block.key) is block:
            del self._by_key[block.key]
            if self.listener is not None:
                self.listener.removed(block.key)
        block.key = None
