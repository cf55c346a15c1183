"""jitpy as a backend of torch.compile: `torch.compile(model, backend="jitpy")`.

Dynamo captures the program; each of its graphs is a Python function, which is jitted. It is compiled when it first
runs, with the real inputs. AOTAutograd may stand in front: `aot_autograd(fw_compiler=jitpy.torch_compile.compile_fx)`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .options import Options, check

if TYPE_CHECKING:
    import importlib.metadata

#: modes that torch.compile knows besides jitpy's own
_MODES = {"max-autotune-no-cudagraphs": "max-autotune"}


def compile_fx(graph_module: torch.fx.GraphModule, example_inputs: list[Any], *, mode: str = "default",
               options: dict[str, Any] | None = None) -> Callable[..., Any]:
    """The backend: torch.compile calls it for each graph. `mode` and `options` are those of `jitpy.jit`.

    Sizes that are symbols in the graph are symbols in what is compiled. TypeError, ValueError: as `jitpy.jit`.
    """
    chosen = check("codegen", _MODES.get(mode, mode), False, None, options)
    if any(_needs_aot(node) for node in graph_module.graph.nodes):
        from torch._dynamo.backends.common import aot_autograd
        from torch._functorch.partitioners import min_cut_rematerialization_partition

        behind = functools.partial(_compile, options=chosen)
        return aot_autograd(fw_compiler=behind, partition_fn=min_cut_rematerialization_partition)(
            graph_module, example_inputs)
    return _compile(graph_module, example_inputs, chosen)


def _needs_aot(node: torch.fx.Node) -> bool:
    """Whether a node calls one of Dynamo's forms of checkpoints, custom gradients and transforms of torch.func, which
    AOTAutograd turns into plain operations. `torch.cond` stays what it is."""
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return node.target is not torch.ops.higher_order.cond
    return getattr(node.target, "__module__", None) in ("torch._C._functorch", "torch._functorch.predispatch")


def _compile(graph_module: torch.fx.GraphModule, example_inputs: list[Any], options: Options) -> Callable[..., Any]:
    from torch.fx._lazy_graph_module import _LazyGraphModule

    from .engine import Engine
    from .frontend.guards.source import LocalSource

    engine = Engine(options, splits=False)
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    examples = [node.meta.get("example_value", node.meta.get("val", example))
                for node, example in zip(inputs, example_inputs, strict=True)]
    behind_aot = any("val" in node.meta for node in inputs)
    floats = [] if behind_aot else [
        i for i, (node, example) in enumerate(zip(inputs, examples, strict=True)) if _is_float(node, example)]
    for i in floats:
        _take_number(inputs[i])
    if floats:
        graph_module.recompile()
    for part in graph_module.modules():  # Dynamo's write their Python code when it is first asked for
        _LazyGraphModule.force_recompile(part)
    function = graph_module.forward.__func__  # type: ignore[attr-defined]
    jitted = engine.dispatcher(function)
    for i, example in enumerate(examples):
        engine.expect(jitted, LocalSource(1 + i, function.__code__.co_varnames[1 + i], False), example)
    call = types.MethodType(jitted, graph_module)
    if behind_aot:
        return _boxed(call)
    return _with_numbers(call, floats) if floats else call


def _is_float(node: torch.fx.Node, example: Any) -> bool:
    """Whether an input is one of the tensors in which Dynamo passes floats that are symbols."""
    return isinstance(example, torch.Tensor) and example.dtype is torch.float64 and example.ndim == 0 and \
        example.device.type == "cpu" and len(node.users) > 0 and all(
            user.target in ("item", torch.ops.aten._local_scalar_dense.default) for user in node.users)


def _take_number(node: torch.fx.Node) -> None:
    for user in list(node.users):
        user.replace_all_uses_with(node)
        user.graph.erase_node(user)
    node.type = float


def _boxed(call: Callable[..., Any]) -> Callable[..., Any]:
    """The form that AOTAutograd takes: the list of arguments is emptied, so that it holds none of them."""

    def call_boxed(args: list[Any]) -> Any:
        given = tuple(args)
        args.clear()
        return call(*given)

    call_boxed._boxed_call = True  # type: ignore[attr-defined]
    return call_boxed


def _with_numbers(call: Callable[..., Any], positions: list[int]) -> Callable[..., Any]:
    """Pass floats as numbers: they are constants of what jitpy compiles until they change."""

    def call_with_numbers(*args: Any) -> Any:
        given = list(args)
        for i in positions:
            given[i] = given[i].item()
        return call(*given)

    return call_with_numbers


class _EntryPoint:
    """Tells `importlib.metadata` of the backend where jitpy is imported without being installed."""

    @staticmethod
    def find_spec(*_: Any) -> None:
        """It finds no modules."""

    @staticmethod
    def find_distributions(context: Any) -> Iterator[importlib.metadata.Distribution]:
        """See `importlib.metadata.DistributionFinder`."""
        import importlib.metadata

        class Backend(importlib.metadata.Distribution):
            def read_text(self, filename: str) -> str | None:
                return {"METADATA": "Name: jitpy-backend\nVersion: 0\n",
                        "entry_points.txt": f"[torch_dynamo_backends]\njitpy = {__name__}:{compile_fx.__name__}\n",
                        }.get(filename)

            def locate_file(self, path: Any) -> Any:
                return path

        if context.name in (None, "jitpy-backend"):
            yield Backend()


def register() -> None:
    """Make the backend known to torch.compile by its name, whether its registry is loaded already or not."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    if registry is not None and "jitpy" not in getattr(registry, "_BACKENDS", ("jitpy",)):
        registry.register_backend(compile_fx, name="jitpy")
    sys.meta_path.append(_EntryPoint)  # type: ignore[arg-type]
