"""Backends, which make graphs callable: `cpp/`, `eager`, the registry, and the bridge to backends that take fx
graphs."""
