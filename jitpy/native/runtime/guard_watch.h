// Which snapshots want to hear of changes to which dicts (CPython 3.12 and later).
#pragma once

#include <Python.h>

class Snapshot;

// Start telling the snapshot of changes to the dict: `dict_changed(node)` before each change, `dict_freed()` before the
// dict is freed. False where dicts cannot be watched: the caller goes by the dict's version instead.
bool watch_dict(PyObject* dict, Snapshot* snapshot, int node);

// Forget that the snapshot watches the dict.
void unwatch_dict(PyObject* dict, Snapshot* snapshot);
