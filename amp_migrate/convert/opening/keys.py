"""Keys of dictionaries and members of sets. Python hashes them, and a file can be made so that this never ends."""

from __future__ import annotations

from typing import Any

from ..errors import Damaged
from ..records import Call, Global, PickledObject, Storage, Tensor

#: parts of a tuple that is a key, counted as often as they are shared: ``hash`` goes through all of them
MAX_KEY_PARTS = 1_000
#: ints from here on can be chosen so that all have one hash (``sys.hash_info.modulus``)
_BIG_INT = (1 << 61) - 1
#: keys in a file whose hash its author could choose; a hundred million comparisons of equal hashes take some seconds
MAX_CHOSEN_HASHES = 10_000

_RANDOM_HASH = (str, bytes)
_FIXED_HASH = (int, float, complex, type(None), bool)
_IDENTITY_HASH = (Global, Call, PickledObject, Storage, Tensor)


class KeyCheck:
    """Says whether a value may be hashed. One per file, for it counts the keys that could be made to collide."""

    def __init__(self) -> None:
        self._chosen = 0

    def check(self, key: Any) -> None:
        """Raise Damaged for what has no hash, or one that takes too long."""
        kind = type(key)
        if kind in _RANDOM_HASH or kind is bool or key is None:
            return
        if kind is int and -_BIG_INT < key < _BIG_INT:
            return
        if kind in _FIXED_HASH or (kind in (tuple, frozenset) and not self._has_random_part(key)):
            self._chosen += 1
            if self._chosen > MAX_CHOSEN_HASHES:
                raise Damaged(f"more than {MAX_CHOSEN_HASHES} keys are numbers of a kind that can be made to collide")
        elif kind not in (tuple, frozenset) and kind not in _IDENTITY_HASH:
            raise Damaged(f"a {kind.__name__} is used as a key; keys have to be unchangeable")

    @staticmethod
    def _has_random_part(key: Any) -> bool:
        waiting = [key]
        parts = 0
        is_random = False
        while waiting:
            part = waiting.pop()
            parts += 1
            if parts > MAX_KEY_PARTS:
                raise Damaged(f"a key has more than {MAX_KEY_PARTS} parts")
            if type(part) in (tuple, frozenset):
                waiting.extend(part)
                parts += len(part)
            elif type(part) in _RANDOM_HASH:
                is_random = True
            elif type(part) not in _FIXED_HASH and type(part) not in _IDENTITY_HASH:
                raise Damaged(f"a key holds a {type(part).__name__}; keys have to be unchangeable")
        return is_random
