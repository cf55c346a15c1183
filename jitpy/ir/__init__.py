"""The graph: `Graph`, `Node`, specs, symbolic sizes, and the op table. Imports nothing of jitpy."""

from .graph import CONSTANT, GETITEM, INPUT, Graph, Loc, Mutation, Node, map_nodes, visit_nodes
from .op import NotCovered, Op
from .sizes import SizeEnv, SizeUnknown, SymbolInfo
from .spec import Dim, ScalarSpec, Spec, TensorSpec, contiguous_spec, contiguous_stride, prod

__all__ = [
    "CONSTANT", "GETITEM", "INPUT", "Dim", "Graph", "Loc", "Mutation", "Node", "NotCovered", "Op",
    "ScalarSpec", "SizeEnv", "SizeUnknown", "Spec", "SymbolInfo", "TensorSpec", "contiguous_spec", "contiguous_stride",
    "map_nodes", "prod", "visit_nodes",
]
