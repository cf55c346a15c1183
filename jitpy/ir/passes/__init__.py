"""Graph rewrites: tables of patterns, and the list of passes."""

from .pattern import P, Rule, Rules, apply, rule
from .pipeline import register_pass, run_passes

__all__ = ["P", "Rule", "Rules", "apply", "register_pass", "rule", "run_passes"]
