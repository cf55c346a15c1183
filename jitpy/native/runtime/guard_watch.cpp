#include "guard_watch.h"

#include "guard_snapshot.h"

#if PY_VERSION_HEX >= 0x030C0000

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace {

struct Listener {
  Snapshot* snapshot;
  int node;
};

// Dicts are in here as long as they live and somebody listens. Never destroyed: events come until the process ends.
auto& listeners = *new std::unordered_map<PyObject*, std::vector<Listener>>;
int watcher = -2;  // CPython's number of our callback; -1: it has none left, -2: not asked for yet

int on_dict_event(PyDict_WatchEvent event, PyObject* dict, PyObject*, PyObject*) {
  const auto found = listeners.find(dict);
  if (found == listeners.end()) return 0;
  if (event != PyDict_EVENT_DEALLOCATED) {
    for (const Listener& listener : found->second) listener.snapshot->dict_changed(listener.node);
    return 0;
  }
  const std::vector<Listener> told = std::move(found->second);
  listeners.erase(found);
  for (const Listener& listener : told) listener.snapshot->dict_freed();
  return 0;
}

}  // namespace

bool watch_dict(PyObject* dict, Snapshot* snapshot, int node) {
  if (watcher == -2 && (watcher = PyDict_AddWatcher(on_dict_event)) < 0) PyErr_Clear();
  if (watcher < 0) return false;
  std::vector<Listener>& all = listeners[dict];
  if (all.empty() && PyDict_Watch(watcher, dict) < 0) {
    PyErr_Clear();
    listeners.erase(dict);
    return false;
  }
  all.push_back({snapshot, node});
  return true;
}

void unwatch_dict(PyObject* dict, Snapshot* snapshot) {
  const auto found = listeners.find(dict);
  if (found == listeners.end()) return;
  std::vector<Listener>& all = found->second;
  all.erase(std::remove_if(all.begin(), all.end(), [&](const Listener& l) { return l.snapshot == snapshot; }),
            all.end());
  if (!all.empty()) return;
  listeners.erase(found);
  if (PyDict_Unwatch(watcher, dict) < 0) PyErr_Clear();
}

#else

bool watch_dict(PyObject*, Snapshot*, int) { return false; }
void unwatch_dict(PyObject*, Snapshot*) {}

#endif
