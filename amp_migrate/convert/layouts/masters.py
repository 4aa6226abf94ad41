"""Which weight of a model each master is: told by shape and value, by order only where that is proven.

A master, rounded to half, is the model's weight: Apex copies it there after every step. Masters come in the order of
the optimizer's groups, which need not be the model's. Weights that were never trained (all ones, all zeros) look alike;
their masters may differ by less than a half can show.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Iterator, Sequence

from ..errors import CannotConvert
from ..records import Tensor
from ..values import HALVES, half_of
from .kinds import is_float

#: how many leading elements are compared before whole tensors are
_HEAD = 16
#: how often the search for the parts of a flat master may go back
_BUDGET = 20_000
_HELP = "Give the names of the parameters in the optimizer's order (param_order)."


@dataclass(frozen=True, eq=False)
class Weight:
    """One tensor of a model, under all of its names (tied weights have several)."""

    tensor: Tensor
    #: where it stands in the file, among all weights
    position: int
    #: the model states that hold it, and the keys there
    places: list[tuple[Any, str]]


@dataclass(frozen=True, eq=False)
class Masters:
    """The masters of one optimizer, by group."""

    place: str
    groups: list[list[Tensor]]
    #: ids of the file's model states, nearest to the optimizer first: it trains the first that has all of its masters
    nearest: tuple[int, ...]

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        return ((index, master) for index, group in enumerate(self.groups) for master in group)


@dataclass
class Values:
    """Comparisons of tensors' values, each made once. Torch does them; it is loaded when the first is made."""

    heads: dict[tuple[int, str], tuple[Any, ...]] = field(default_factory=dict)
    same: dict[tuple[int, int, bool], bool] = field(default_factory=dict)
    kept: list[Tensor] = field(default_factory=list)

    def head(self, tensor: Tensor, kind: str) -> tuple[Any, ...]:
        """Shape and first elements, rounded to "float16" or "bfloat16"."""
        if (id(tensor), kind) not in self.heads:
            from ..comparing import first_halves

            self.kept.append(tensor)
            self.heads[id(tensor), kind] = (tensor.shape, kind, first_halves(tensor, _HEAD, kind))
        return self.heads[id(tensor), kind]

    def rounds_to(self, master: Tensor, weight: Tensor) -> bool:
        """Whether a master's values, rounded to half, are the weight's, or are the weight's as they are."""
        from ..comparing import rounds_to

        return self._compared(master, weight, False, rounds_to) or self.equal(master, weight)

    def equal(self, one: Tensor, other: Tensor) -> bool:
        """Whether two tensors have the same values, whatever their dtypes."""
        from ..comparing import same_values

        return self._compared(one, other, True, same_values)

    def _compared(self, one: Tensor, other: Tensor, exact: bool, compare: Callable[[Tensor, Tensor], bool]) -> bool:
        key = (id(one), id(other), exact)
        if key not in self.same:
            self.kept.extend((one, other))
            self.same[key] = compare(one, other)
        return self.same[key]


def weights_of(models: Iterable[Any], only_half: bool) -> list[Weight]:
    """The distinct weights of model states, in the order of the file.

    Args:
        models: dicts of tensors.
        only_half: leave out what isn't half, unless nothing is (a model saved in float32).
    """
    by_view: dict[Any, Weight] = {}
    for model in models:
        for key, value in model.items():
            if is_float(value) and value.numel:
                view = (id(value.storage), value.offset, value.shape, value.stride)
                weight = by_view.setdefault(view, Weight(value, len(by_view), []))
                weight.places.append((model, key))
    found = list(by_view.values())
    halves = [weight for weight in found if weight.tensor.dtype in HALVES]
    return halves if only_half and halves else found


def by_names(masters: Masters, names: Sequence[str], weights: list[Weight], values: Values) -> list[Weight]:
    """The weights of an optimizer's masters, one each, from names in the optimizer's order.

    Raises:
        CannotConvert: for a name that the models don't have, and where a value contradicts the name.
    """
    named = {key: weight for weight in reversed(weights) for _, key in weight.places}
    # the masters of parameters that are float32 anyway aren't in the file
    chosen = [named[name] for name in names if name in named]
    all_masters = [master for _, master in masters]
    if len(chosen) != len(all_masters):
        missing = [name for name in names if name not in named]
        raise CannotConvert(
            f"{masters.place} has {len(all_masters)} masters, param_order names {len(chosen)} half weights of the file "
            f"(not found as such: {missing})"
        )
    for name, weight, master in zip([n for n in names if n in named], chosen, all_masters):
        if weight.tensor.shape != master.shape or not values.rounds_to(master, weight.tensor):
            raise CannotConvert(f"{masters.place}: param_order says {name}, but its master has other values")
    return chosen


@dataclass
class Matching:
    """The search for the weights of several optimizers' masters at once."""

    weights: list[Weight]
    values: Values = field(default_factory=Values)
    #: names of weights that nothing but the order tells apart
    by_order: list[str] = field(default_factory=list)
    #: by shape and first elements: weights of equal values together
    _by_head: dict[tuple[Any, ...], list[list[Weight]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for weight in self.weights:
            alike = self._by_head[self.values.head(weight.tensor, half_of(weight.tensor))]
            same = next((one for one in alike if self.values.equal(one[0].tensor, weight.tensor)), None)
            if same is None:
                alike.append([weight])
            else:
                same.append(weight)

    def candidates(self, master: Tensor) -> list[Weight]:
        """The weights that a master may be."""
        heads = (self.values.head(master, kind) for kind in HALVES)
        alike = [same for head in heads for same in self._by_head.get(head, ())]
        return [weight for same in alike if self.values.rounds_to(master, same[0].tensor) for weight in same]

    def match(self, optimizers: Sequence[Masters]) -> list[tuple[Weight, Tensor]]:
        """Return every weight that has a master, with it.

        Raises:
            CannotConvert: if a master is no weight of the file, or may be several with different results.
        """
        entries = [entry for optimizer in optimizers for entry in self._entries(optimizer)]
        alike: dict[tuple[int, ...], list[_Entry]] = defaultdict(list)
        for entry in entries:
            alike[tuple(weight.position for weight in entry.weights)].append(entry)
        certain = _certain(alike.values())
        pairs = [pair for same in alike.values() for pair in self._resolved(same, certain)]
        self._check_once(pairs, optimizers)
        return pairs

    def _check_once(self, pairs: list[tuple[Weight, Tensor]], optimizers: Sequence[Masters]) -> None:
        taken: dict[int, Tensor] = {}
        for weight, master in pairs:
            if not self.values.equal(taken.setdefault(weight.position, master), master):
                places = ", ".join(one.place for one in optimizers)
                raise CannotConvert(f"two masters of {places} belong to {weight.places[0][1]}. {_HELP}")

    def _bland(self, entry: _Entry) -> bool:
        """Whether a weight's values are all one number, so that it is like another one by chance, not by a tie."""
        weight = entry.weights[0]
        return self.only_number(weight) is not None and not self.values.equal(entry.master, weight.tensor)

    def only_number(self, weight: Weight) -> float | None:
        """The number that the first values of a weight all are; None if they differ."""
        numbers = set(self.values.head(weight.tensor, half_of(weight.tensor))[-1])
        return float(numbers.pop()) if len(numbers) == 1 else None

    def _entries(self, optimizer: Masters) -> list[_Entry]:
        found = [
            _Entry(optimizer, index, master, self.candidates(master)) for index, master in optimizer if master.numel
        ]
        for entry in found:
            if not entry.weights:
                raise CannotConvert(
                    f"{optimizer.place}: group {entry.group} has a master of shape {tuple(entry.master.shape)} that is "
                    "no weight of the model beside it. Is it a checkpoint of the same step and model?"
                )
        models = _models_of(found)
        return [entry.within(models) for entry in found]

    def _resolved(self, same: list[_Entry], certain: dict[tuple[int, int], list[int]]) -> list[tuple[Weight, Tensor]]:
        """Masters that may be any of the same weights."""
        weights, first = same[0].weights, same[0].master
        spare = len(weights) > len(same)
        if all(self.values.equal(first, entry.master) for entry in same[1:]) and not (spare and self._bland(same[0])):
            # whichever is which: the same numbers; weights without a master are ties, and equal too
            return [(weight, first) for weight in weights]
        groups = {(id(entry.optimizer), entry.group) for entry in same}
        names = [key for weight in weights for _, key in weight.places]
        if len(groups) == 1 and len(weights) == len(same) and _in_order(same[0], certain):
            self.by_order += names
            return list(zip(weights, (entry.master for entry in same)))
        raise CannotConvert(
            f"{same[0].optimizer.place}: group {same[0].group} has {len(same)} masters that may each be any of "
            f"{', '.join(names)}: rounded to half they are equal. {_HELP}"
        )


@dataclass(frozen=True, eq=False)
class _Entry:
    optimizer: Masters
    group: int
    master: Tensor
    weights: list[Weight]

    def within(self, models: set[int]) -> _Entry:
        """The same with only the weights of some model states, if any is there."""
        inside = [weight for weight in self.weights if any(id(model) in models for model, _ in weight.places)]
        return _Entry(self.optimizer, self.group, self.master, inside or self.weights)


def _models_of(entries: list[_Entry]) -> set[int]:
    """The model state that an optimizer trains: the first that has all of its masters.

    If none has, several are trained together: those that hold a weight which nothing else can be.
    """
    every = [{id(model) for weight in entry.weights for model, _ in weight.places} for entry in entries]
    whole = set.intersection(*every) if every else set()
    if whole:
        return {next(one for one in entries[0].optimizer.nearest if one in whole)}
    return {next(iter(models)) for models in every if len(models) == 1}


def _certain(alike: Iterable[list[_Entry]]) -> dict[tuple[int, int], list[int]]:
    """Positions of the weights that are certain, in the order of each optimizer's group."""
    certain: dict[tuple[int, int], list[int]] = defaultdict(list)
    for entry in sorted((s[0] for s in alike if len(s) == 1 and len(s[0].weights) == 1), key=_rank):
        certain[id(entry.optimizer), entry.group].append(entry.weights[0].position)
    return certain


def _rank(entry: _Entry) -> int:
    return next(i for i, (_, master) in enumerate(entry.optimizer) if master is entry.master)


def _in_order(entry: _Entry, certain: dict[tuple[int, int], list[int]]) -> bool:
    """Whether an entry's group has the model's order: what is certain there rises.

    In a group in which fewer than two are certain, those of the optimizer's other groups have to.
    """
    own = certain.get((id(entry.optimizer), entry.group), [])
    if len(own) > 1:
        return _rises(own)
    others = [found for (optimizer, _), found in certain.items() if optimizer == id(entry.optimizer) and len(found) > 1]
    return bool(others) and all(map(_rises, others))


def _rises(positions: list[int]) -> bool:
    return all(a < b for a, b in zip(positions, positions[1:]))


def cut(flat: Tensor, group: str, matching: Matching, used: set[int]) -> list[Tensor]:
    """The masters in a flat tensor, as views of it: at each point, the weight whose values follow.

    Args:
        flat: one dimension, the masters of one group, one after the other (``torch._utils._flatten_dense_tensors``).
        group: what it is called in an error.
        used: positions of weights that an earlier group took; this group's are added.

    Raises:
        CannotConvert: if the weights of the model don't fill it exactly.
    """
    by_size = sorted({weight.tensor.shape for weight in matching.weights}, key=str)
    path: list[tuple[int, Iterator[Weight], Weight | None]] = []
    start, furthest, budget = 0, 0, _BUDGET
    options = _following(flat, 0, -1, by_size, matching, used)
    while start < flat.numel:
        weight = next(options, None)
        budget -= 1
        if weight is not None:
            path.append((start, options, weight))
            used.add(weight.position)
            start += weight.tensor.numel
            furthest = max(furthest, start)
            options = _following(flat, start, weight.position, by_size, matching, used)
        elif path and budget > 0:
            start, options, last = path.pop()
            used.discard(last.position if last else -1)
        else:
            sizes = sum(weight.tensor.numel for weight in matching.weights)
            raise CannotConvert(
                f"{group}: its flat masters have {flat.numel} elements; the half weights beside it ({sizes} elements) "
                f"follow each other there only up to element {furthest}. Is it a checkpoint of the same step and model?"
            )
    parts = [(flat.part(at, weight.tensor.shape), weight) for at, _, weight in path if weight is not None]
    _check_ends(parts, group, matching)
    return [part for part, _ in parts]


def _check_ends(parts: list[tuple[Tensor, Weight]], group: str, matching: Matching) -> None:
    """Refuse a cut of which nothing shows that it is right.

    Where two weights of different sizes are all of the same number, the one may come before the other, or after it.
    """
    bland = [matching.only_number(weight) for _, weight in parts]
    for one, other in zip(range(len(parts)), range(1, len(parts))):
        (part, weight), (_, following) = parts[one], parts[other]
        same = bland[one] is not None and bland[one] == bland[other] and not matching.values.equal(part, weight.tensor)
        if same and weight.tensor.shape != following.tensor.shape:
            certain = [found.position for (_, found), number in zip(parts, bland) if number is None]
            if len(certain) < 2 or not _rises(certain):
                names = f"{weight.places[0][1]} and {following.places[0][1]}"
                raise CannotConvert(f"{group}: rounded to half, {names} are the same numbers in either order. {_HELP}")


def _following(
    flat: Tensor, start: int, last: int, shapes: list[tuple[int, ...]], matching: Matching, used: set[int]
) -> Iterator[Weight]:
    """Unused weights with the values at ``start``: in the model's order, from the last one on."""
    found: list[Weight] = []
    for shape in shapes:
        part = _part(flat, start, shape)
        if part is not None:
            found.extend(weight for weight in matching.candidates(part) if weight.position not in used)
    return iter(sorted(found, key=lambda weight: (weight.position < last, weight.position)))


def _part(flat: Tensor, start: int, shape: tuple[int, ...]) -> Tensor | None:
    try:
        return flat.part(start, shape)
    except CannotConvert:
        return None
