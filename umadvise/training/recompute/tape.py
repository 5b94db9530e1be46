"""Making the results of ops again, when backward asks for them.

The ops of a region are written on a tape as they run. An op that shall run again leaves a `_Result` behind: what it
was, and what it was given. When autograd saves a tensor that lies in such a result's storage, it gets a note instead
of the tensor, and the memory goes when nothing else needs it. When backward reads the note, the op runs again, and
before it, in the same way, those of its inputs that are results themselves.
"""

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from umadvise.recording.operators import OperatorInfo, OpKind, derive
from umadvise.records.trace import Access


@cache
def _info(func: Any) -> OperatorInfo:
    return derive(func)


def counts_as_op(func: Any) -> bool:
    """Whether a recorder counts a call: views and their kin are no ops of a step."""
    return isinstance(func, torch._ops.OpOverload) and _info(func).kind is not OpKind.UNTOUCHING


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Arguments that it writes to, by its schema or, as batch normalisation does, silently: index and name."""
    return tuple((each.index, each.name) for each in _info(func).arguments if each.flags & Access.WRITE)


def tensors_written(func: Any, args: Any, named: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that a call writes to, beside its new results."""
    places = _written_arguments(func)
    return tensors_in([args[index] if index < len(args) else named.get(name) for index, name in places])


def may_run_again(func: Any, args: Any, named: dict[str, Any], is_result: Callable[[torch.Tensor], bool]) -> bool:
    """Whether a call can be repeated: it draws no random numbers, and what it writes to can be made again.

    Args:
        func: operator that is called.
        args: positional arguments of the call.
        named: named arguments of the call.
        is_result: function that says whether a tensor can itself be made again.
    """
    if _info(func).kind is not OpKind.OPERATION or not func._schema.returns:
        return False
    if torch.Tag.nondeterministic_seeded in func.tags and not _drops_nothing(func, args, named):
        return False
    return all(_fills_storage(tensor) and is_result(tensor) for tensor in tensors_written(func, args, named))


def _fills_storage(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.nbytes == tensor.untyped_storage().nbytes()


def _drops_nothing(func: Any, args: Any, named: dict[str, Any]) -> bool:
    """Attention draws random numbers only for its dropout."""
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[index] if index < len(args) else named.get("dropout_p", argument.default_value)
            return bool(given == 0)
    return False


class _Note:
    """Stands for a tensor that lies in a result: autograd holds it, or another result that was made from it."""

    def __init__(self, result: "_Result", position: int, tensor: torch.Tensor) -> None:
        self.result = result
        self._position = position
        self._dtype = tensor.dtype
        self._layout = (tensor.size(), tensor.stride(), tensor.storage_offset())
        self._conjugated, self._negated = tensor.is_conj(), tensor.is_neg()
        result.notes.add(self)
        result.unread.add(self)

    def read(self) -> torch.Tensor:
        """The tensor, made again."""
        with torch.no_grad():
            made = self.result.outputs(self)[self._position]
            made = made if made.dtype == self._dtype else made.view(self._dtype)
            made = made.as_strided(*self._layout)
            made = made.conj() if self._conjugated else made
            return torch._neg_view(made) if self._negated else made


class _Given:
    """A tensor that is kept as it is, with the version that it had."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._version = None if tensor.is_inference() else tensor._version

    def read(self) -> torch.Tensor:
        """The tensor.

        Raises:
            RuntimeError: it has been changed in place since; torch says so too, but not where hooks save tensors.
        """
        if self._version is not None and self._tensor._version != self._version:
            raise RuntimeError(
                f"a tensor of shape {list(self._tensor.shape)} that backward needs, of a region marked by "
                "torch.utils.checkpoint, has been modified by an inplace operation: it is at version "
                f"{self._tensor._version}; expected version {self._version}. Leave that operation out, or use a policy "
                'other than "swap+recompute"'
            )
        return self._tensor


class _Result:
    """What one op made, and how to make it again.

    Attributes:
        notes: notes that stand for tensors in it, as long as they live.
        unread: those of the notes that nobody has read since it was made last.
    """

    def __init__(self, func: Any, args: Any, named: dict[str, Any], pack: Callable[[Any], Any]) -> None:
        leaves, self._form = pytree.tree_flatten((args, named))
        written = {id(tensor) for tensor in tensors_written(func, args, named)}
        self._func = func
        self._written = [id(leaf) in written for leaf in leaves]
        self._leaves = [pack(leaf) for leaf in leaves]
        self._outputs: list[torch.Tensor] | None = None
        self._kept = False
        self.notes: WeakSet[_Note] = WeakSet()
        self.unread: WeakSet[_Note] = WeakSet()

    @property
    def is_there(self) -> bool:
        """Whether it is made and held, for others to read."""
        return self._outputs is not None

    def outputs(self, reader: _Note) -> list[torch.Tensor]:
        """The tensors that the op returned. They stay until each note has been read, and then are made anew."""
        self._make()
        assert self._outputs is not None
        outputs = self._outputs
        self.unread.discard(reader)
        if not self._kept and len(self.unread) == 0:
            self._outputs = None
        return outputs

    def keep(self) -> None:
        """Makes it for good, while it still can be made."""
        self._make()
        self._kept = True

    def _make(self) -> None:
        """Runs the ops that are needed, the first ones first; a chain of them may be longer than Python can recurse."""
        waiting = [self]
        while waiting:
            result = waiting[-1]
            missing = [leaf.result for leaf in result._leaves if isinstance(leaf, _Note)]
            missing = [each for each in missing if not each.is_there]
            if not result.is_there and missing:
                waiting += missing
                continue
            if not result.is_there:
                result._run()
            waiting.pop()

    def _run(self) -> None:
        # The op came from below autograd and autocast the first time.
        with torch.no_grad(), torch._C._DisableAutocast():
            leaves = [_read(leaf, written) for leaf, written in zip(self._leaves, self._written, strict=True)]
            args, named = pytree.tree_unflatten(leaves, self._form)
            self._outputs = tensors_in(self._func(*args, **named))
        self.unread.update(self.notes)


def _read(leaf: Any, written: bool) -> Any:
    """An argument, as the op had it; one that is written is nobody else's."""
    if not isinstance(leaf, _Note | _Given):
        return leaf
    tensor = leaf.read()
    shared = isinstance(leaf, _Note) and leaf.result.is_there
    return tensor.clone() if written and shared else tensor


def tensors_in(values: Any) -> list[torch.Tensor]:
    """The tensors among an op's arguments or results, in order."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but its bytes in a storage."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage that a tensor lies in; 0 for a tensor that is more than its bytes."""
    return tensor.untyped_storage()._cdata if is_plain(tensor) else 0


def storages_of(made: Any) -> dict[int, StorageWeakRef]:
    """The storages of an op's results; the references keep their addresses from being used again."""
    return {storage_key(each): StorageWeakRef(each.untyped_storage()) for each in filter(is_plain, tensors_in(made))}


class Tape(TorchDispatchMode):
    """Follows a region's ops, and gives autograd notes for what shall be made again."""

    def __init__(self, chosen: frozenset[int]) -> None:
        """Takes the indices of the region's ops that shall run again; where one may not, it does not."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._chosen = chosen
        self._index = 0
        # By the storage's address, which is not used for another while there is a weak reference to it.
        self._results: dict[int, tuple[StorageWeakRef, _Result, int]] = {}
        self._given: dict[int, WeakSet[_Result]] = {}

    def close(self) -> None:
        """Ends the region: from now on only the notes that autograd saved hold results."""
        self._results.clear()
        self._given.clear()

    def pack(self, tensor: torch.Tensor) -> Any:
        """What autograd saves in the place of a tensor (`saved_tensors_hooks`)."""
        if not is_plain(tensor):
            return tensor
        found = self._results.get(storage_key(tensor))
        return _Given(tensor) if found is None else _Note(found[1], found[2], tensor)

    @staticmethod
    def unpack(saved: Any) -> torch.Tensor:
        """The tensor for which `pack` has saved something, made again if need be."""
        found: torch.Tensor = saved.read() if isinstance(saved, _Note | _Given) else saved
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an op."""
        named = kwargs or {}
        if not counts_as_op(func):
            return func(*args, **named)
        index, self._index = self._index, self._index + 1
        result = None
        if index in self._chosen and may_run_again(func, args, named, self._is_result):
            result = _Result(func, args, named, self._pack_argument)
        written = {storage_key(tensor) for tensor in tensors_written(func, args, named)}
        self._before_write(written)
        made = func(*args, **named)
        if result is not None:
            self._note_result(result, made, {storage_key(tensor) for tensor in tensors_in((args, named))}, written)
        return made

    def _is_result(self, tensor: torch.Tensor) -> bool:
        return storage_key(tensor) in self._results

    def _pack_argument(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        # Without its graph, which would hold what holds it; the guard lets the alias have the tensor's versions.
        with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
            return self.pack(leaf.detach())

    def _note_result(self, result: _Result, made: Any, read: set[int], written: set[int]) -> None:
        self._results = {key: each for key, each in self._results.items() if not each[0].expired()}
        outputs = tensors_in(made)
        if any(not is_plain(output) or storage_key(output) in read - written for output in outputs):
            return  # it has given back what it was given
        for key in read - written - self._results.keys():
            self._given.setdefault(key, WeakSet()).add(result)
        for position, output in enumerate(outputs):
            reference = StorageWeakRef(output.untyped_storage())
            self._results[storage_key(output)] = (reference, result, position)

    def _before_write(self, written: set[int]) -> None:
        """What is written is no result any more, and what was made from it cannot be made again afterwards."""
        for key in written:
            self._results.pop(key, None)
            for result in self._given.pop(key, ()):
                result.keep()
