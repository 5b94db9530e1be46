"""What torch's databases have: operators, operators on lists, modules and optimizers, each as a row of cases."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

from op_trial.bits import tensors_in
from op_trial.cases import OpCase

# The databases forbid the whole process to assign to torch.backends' flags, as other programs do.
with mock.patch("torch.backends.disable_global_flags"):
    from torch.testing._internal import common_methods_invocations as operators
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db
    from torch.testing._internal.common_utils import noncontiguous_like

DTYPES = {name: getattr(torch, name) for name in ("float32", "complex64", "bfloat16", "int64")}
_LISTS = ("unary", "binary", "pointwise", "reduce", "other")


@dataclass(frozen=True)
class OpSubject:
    """An operator, module or optimizer with one dtype.

    Attributes:
        name: "op add float32": database, name there, dtype.
        samples: makes a row of cases for each sample.
    """

    name: str
    samples: Callable[[], Iterator[list[OpCase]]]

    @property
    def database(self) -> str:
        """The first word of the name: op, foreach, module or optimizer."""
        return self.name.partition(" ")[0]

    @property
    def name_there(self) -> str:
        """The name in the database, as in "nn.functional.gelu"."""
        return self.name.partition(" ")[2].rpartition(" ")[0]


def subjects(dtypes: Iterable[str] = DTYPES, *, gaps: bool = True) -> Iterator[OpSubject]:
    """All that there are, in the order of the databases.

    Args:
        dtypes: names of dtypes, keys of `DTYPES`.
        gaps: whether operators are also called with gaps between the elements.
    """
    lists = [each for kind in _LISTS for each in getattr(operators, f"foreach_{kind}_op_db")]
    operator_cases = partial(_operator, gaps=gaps)
    for name in dtypes:
        dtype = DTYPES[name]
        for database, entries in (("op", operators.op_db), ("foreach", lists)):
            for entry in entries:
                if dtype in entry.supported_dtypes("cpu"):
                    full_name = ".".join(filter(None, (entry.name, entry.variant_test_name)))
                    yield OpSubject(f"{database} {full_name} {name}", partial(operator_cases, entry, dtype))
        for module in module_db:
            if dtype in module.supported_dtypes("cpu"):
                yield OpSubject(f"module {module.name} {name}", partial(_module, module, dtype))
        for optimizer in optim_db:
            if dtype.is_floating_point or (dtype.is_complex and optimizer.supports_complex):
                kind = optimizer.optim_cls.__name__  # type: ignore[attr-defined]
                yield OpSubject(f"optimizer {kind} {name}", partial(_optimizer, optimizer, dtype))


# ---- operators -----------------------------------------------------------------------------------------------------


def _operator(operator: Any, dtype: torch.dtype, *, gaps: bool = True) -> Iterator[list[OpCase]]:
    gradients = dtype in operator.supported_backward_dtypes("cpu")
    for sample in operator.sample_inputs("cpu", dtype, requires_grad=gradients, set_seed=False):
        arguments = (sample.input, sample.args, _keywords(sample))
        yield [*_variants(operator, arguments), *(_with_gaps(operator, arguments) if gaps else ())]


def _keywords(sample: Any) -> dict[str, Any]:
    """Those of lists say besides which of CUDA's kernels is expected."""
    return {name: value for name, value in sample.kwargs.items() if name != "disable_fastpath"}


def _variants(operator: Any, arguments: tuple[Any, Any, Any]) -> Iterator[OpCase]:
    follow = (lambda result: _into(operator, arguments, result)) if operator.supports_out else None
    if operator.op is not None:
        yield OpCase("call", arguments, _leaves(arguments), lambda: _call(operator.op, arguments), follow)
    if operator.inplace_variant is not None:
        changed = (tree_map(_copy, arguments[0]), *arguments[1:])
        yield OpCase("in place", changed, _leaves(arguments), lambda: _call(operator.inplace_variant, changed))


def _with_gaps(operator: Any, arguments: tuple[Any, Any, Any]) -> Iterator[OpCase]:
    """The same with gaps between the elements, where there is such a form of the arguments."""
    try:
        spread = tree_map(lambda leaf: noncontiguous_like(leaf) if _has_strides(leaf) else leaf, arguments)
    except RuntimeError:  # views that torch's helper does not take
        return
    if operator.op is not None:
        yield OpCase("non-contiguous", spread, _leaves(spread), lambda: _call(operator.op, spread))


def _into(operator: Any, arguments: tuple[Any, Any, Any], result: Any) -> OpCase | None:
    """The call with `out=`, into tensors of the result's form."""
    several = isinstance(result, tuple | list)
    if not tensors_in(result) or not all(map(_has_strides, result if several else [result])):
        return None
    inputs, rest, keywords = tree_map(lambda leaf: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf, arguments)
    out = tree_map(
        lambda leaf: noncontiguous_like(torch.ones_like(leaf.detach())), tuple(result) if several else result
    )
    given = (inputs, rest, {**keywords, "out": out})
    return OpCase("out", given, [], lambda: _call(operator.op, given))


def _call(function: Callable[..., Any], arguments: tuple[Any, Any, Any]) -> Any:
    inputs, rest, keywords = arguments
    return function(inputs, *rest, **keywords)


def _leaves(arguments: Any) -> list[torch.Tensor]:
    return [each for each in tensors_in(arguments) if each.requires_grad]


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _has_strides(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and not leaf.is_nested


# ---- modules and optimizers ----------------------------------------------------------------------------------------


def _module(entry: Any, dtype: torch.dtype) -> Iterator[list[OpCase]]:
    for training in (True, False):
        made = entry.module_inputs_func(entry, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for sample in made:
            if sample.forward_input is not None:
                yield [_forward(entry.module_cls, sample, dtype, training=training)]


def _forward(kind: Any, sample: Any, dtype: torch.dtype, *, training: bool) -> OpCase:
    constructor, given = sample.constructor_input, sample.forward_input
    module = kind(*constructor.args, **constructor.kwargs).to(dtype).train(training)
    held = [list(module.parameters()), list(module.buffers()), given.args, given.kwargs]
    return OpCase("training" if training else "eval", held, _leaves(held), lambda: module(*given.args, **given.kwargs))


def _optimizer(entry: Any, dtype: torch.dtype) -> Iterator[list[OpCase]]:
    ways: list[dict[str, bool]] = [{"foreach": False}]
    if "foreach" in entry.supported_impls:
        ways.append({"foreach": True})
    if "cpu" in entry.supports_fused_on and not dtype.is_complex:
        ways.append({"fused": True})
    for sample in entry.optim_inputs_func("cpu"):
        for way in ways if "foreach" in entry.supported_impls else [{}]:
            yield [_steps(entry.optim_cls, {**sample.kwargs, **way}, dtype)]


def _steps(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> OpCase:
    """Two steps; everything leaves between them, as the second one follows from the first one's result."""
    parameters = [
        torch.nn.Parameter(torch.randn(5, 3, dtype=dtype)),
        torch.nn.Parameter(torch.randn(3, 4, dtype=dtype)),
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = kind(parameters, **options)

    def step() -> Any:
        optimizer.step(lambda: parameters[0].detach().abs().sum())
        return [dict(optimizer.state[parameter]) for parameter in parameters]

    held = [parameters, [parameter.grad for parameter in parameters]]
    return OpCase("first step", held, [], step, lambda state: OpCase("second step", [held, state], [], step))
