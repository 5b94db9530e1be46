"""Tensors of the meta device in the place of real ones, for code that has the real ones in its hands.

While the mode is on, each function of torch that such code calls is given a stand-in for every real tensor: of the same
form, on a storage of the meta device, the same one for all views of one real storage. What comes back in place of a
stand-in is the real tensor. So the code's own objects never change, whatever it does with them, and no byte is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._mode_utils import no_dispatch

from umadvise.errors import UsageError

Met = Callable[[torch.Tensor, torch.Tensor], None]


class StandIns(TorchFunctionMode):
    """Gives functions of torch stand-ins for the tensors of a device, and makes new tensors on the meta device."""

    def __init__(
        self,
        kind: str,
        met: Met,
        made: Callable[[torch.Tensor], None],
        makes_on_host: Callable[[], bool],
    ) -> None:
        """Begins with no stand-in.

        Args:
            kind: torch's name of the kind of device that is recorded, "cpu" or "cuda".
            met: called with each real tensor and its stand-in when the first tensor of its storage is met.
            made: called with each tensor that torch makes of a value, in no op.
            makes_on_host: whether "cpu" means the host now, as it does within an optimizer's step.
        """
        super().__init__()
        self._kind = kind
        self._met = met
        self._tensor_made = made
        self._makes_on_host = makes_on_host
        self._of: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the real one's identity, which is held
        self._real: dict[int, torch.Tensor] = {}  # by the stand-in's identity
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._made: set[int] = set()  # identities of tensors of the host that code made under the mode

    @contextmanager
    def on(self) -> Iterator[None]:
        """The mode, and the functions of torch that no mode sees."""
        groups = torch._C._group_tensors_by_device_and_dtype
        apply = vars(torch.autograd.Function)["apply"].__func__

        def applied(kind: Any, *args: Any, **named: Any) -> Any:
            return apply(kind, *self._all(args), **self._all(named))

        with (
            mock.patch.object(
                torch._C, "_group_tensors_by_device_and_dtype", lambda lists, *more: groups(self._all(lists), *more)
            ),
            mock.patch.object(torch.autograd.Function, "apply", classmethod(applied)),
            self,
        ):
            yield

    def of(self, real: torch.Tensor) -> torch.Tensor:
        """The stand-in of a tensor: the tensor itself where it is not one of the device, or was made under the mode.

        What has one element and needs no gradient keeps its value, in a copy: optimizers look at such counts of steps.
        """
        if real.device.type == "meta" or id(real) in self._made or id(real) in self._real:
            return real
        known = self._of.get(id(real))
        if known is not None:
            return known[1]
        with no_dispatch(), torch.no_grad():
            stand_in = self._new(real)
        self._of[id(real)], self._real[id(stand_in)] = (real, stand_in), real
        if real.grad is not None and real.is_leaf:
            with no_dispatch():
                stand_in.grad = self.of(real.grad)
        return stand_in

    def _new(self, real: torch.Tensor) -> torch.Tensor:
        if real.layout is not torch.strided:
            raise UsageError(f"the step cannot be recorded without data: it uses a tensor of layout {real.layout}")
        if real.dim() == 0 and not real.requires_grad:
            stand_in = real.detach().clone()
            self._met(real, stand_in)
            return stand_in
        storage = real.untyped_storage()
        known = self._storages.get(storage._cdata)
        first = known is None
        if known is None:
            known = self._storages[storage._cdata] = storage, torch.UntypedStorage(storage.nbytes(), device="meta")
        stand_in = torch.empty(0, dtype=real.dtype, device="meta")
        stand_in.set_(known[1], real.storage_offset(), real.size(), real.stride())
        if isinstance(real, torch.nn.Parameter):
            stand_in = torch.nn.Parameter(stand_in, real.requires_grad)
        else:
            stand_in.requires_grad_(real.requires_grad)
        if first:
            self._met(real, stand_in)
        return stand_in

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of torch with stand-ins."""
        args, named = self._moved(func, tuple(args), dict(kwargs or {}))
        args, named = self._all((args, named))
        if func is torch.Tensor.backward:
            with self:  # its hooks run Python of their own
                return _backward(*args, **named)
        result = func(*args, **named)
        if func is torch.tensor:
            self._tensor_made(result)
        return pytree.tree_map_only(torch.Tensor, self._returned, result)

    def _all(self, values: Any) -> Any:
        with torch._C.DisableTorchFunction():  # as for functions that no mode sees
            return pytree.tree_map_only(torch.Tensor, self.of, values)

    def _moved(
        self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a function with the meta device in the place of the one that is recorded."""
        if func in _device_constructors() and named.get("device") is None:
            named["device"] = "cpu" if self._makes_on_host() else "meta"
        elif self._is_recorded(named.get("device")):
            named["device"] = "meta"
        if getattr(func, "__name__", "") == "to":
            args = tuple("meta" if self._is_recorded(each) else each for each in args)
        return args, named

    def _is_recorded(self, device: Any) -> bool:
        if not isinstance(device, str | torch.device):
            return False
        kind = torch.device(device).type
        return kind == self._kind and not (kind == "cpu" and self._makes_on_host())

    def _returned(self, result: torch.Tensor) -> torch.Tensor:
        real = self._real.get(id(result))
        if real is None and not result.is_meta:
            self._made.add(id(result))
        return result if real is None else real


def _backward(
    tensor: torch.Tensor,
    gradient: torch.Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """torch.Tensor.backward, which would ask the mode again."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)
