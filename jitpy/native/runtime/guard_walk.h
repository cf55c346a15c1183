// Reading one node of a guard program, and checking its value.
#pragma once

#include <Python.h>

#include <vector>

#include "guard_program.h"

// One call as guards see it: everything borrowed.
struct Frame {
  PyObject* const* params;
  Py_ssize_t n;
  PyObject* globals;
  PyObject* closure;  // tuple of cells, None or null
};

// 0 after clearing an `Exception`; -1 where something else was raised, which stays set.
int clear_exception();

// The value of a root node, borrowed; null where there is none.
PyObject* read_root(const Node& node, const Frame& frame);

// The value of a node, read from its parent's (null for roots). New reference; null where the step cannot be made,
// with or without an exception set.
PyObject* read_node(const Node& node, PyObject* base, const Frame& frame);

// Whether the value passes all checks of the node; binds symbols. 1, 0, or -1 with an exception set as in
// `guard_evaluate`.
int checks_pass(const Program& program, const Node& node, PyObject* value, int64_t* symbols);

// The values that final checks want, by their slots. Made when the first one comes: most calls need none.
class Kept {
 public:
  explicit Kept(int n) : n_(n) {}
  ~Kept();
  Kept(const Kept&) = delete;
  void put(int slot, PyObject* borrowed);
  PyObject* get(int slot) const { return values_.empty() ? nullptr : values_[slot]; }
  PyObject* const* all() const { return values_.data(); }

 private:
  const int n_;
  std::vector<PyObject*> values_;
};

// Drop the references and leave a pending exception alone: a finalizer must not see it.
void drop_all(PyObject* const* objects, size_t n);

// Read and check the nodes from `begin` to `end`: whole subtrees of roots. 1, 0 or -1. `values` has a slot for each
// depth and takes references.
int walk_nodes(const Program& program, int begin, int end, const Frame& frame, PyObject** values, Kept& kept,
               int64_t* symbols);
