// The steps of a program in native form, one class per step class of jitpy/runtime/plan.py.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "frame.h"

namespace jitpy {

struct Step {
  virtual ~Step() = default;
  // Runs with the GIL held. Throws python_error (with the Python exception set) or a C++ exception.
  virtual void run(Frame& frame) const = 0;
  // Does it run operators or Python code, which may warn and see autograd?
  virtual bool is_call() const { return true; }
  // Does it make a tensor for a step behind it?
  virtual bool is_made_ahead() const { return false; }
  // Its name for a profiler; nullptr where it has no name of its own (operators say their own).
  virtual const std::string* recorded_name() const { return nullptr; }
};

// Where a symbol's value is read.
struct SymbolPlace {
  int32_t slot;
  int32_t dim;  // -1: the int in the slot itself
  bool stride;

  // False where the number does not fit 64 bits.
  bool read(const Frame& frame, int64_t* value) const;
};

// Computes entries of the size table from the symbols: by a compiled function, or else a Python one.
struct SizeFill {
  void (*function)(const int64_t* symbols, int64_t* table) = nullptr;
  PyObject* python = nullptr;  // borrowed: see PlanReader::keep
  std::vector<int32_t> entries;

  void run(const Frame& frame, int32_t n_symbols) const;
};

// Attributes of a plan's objects, converted.
bool flag(PyObject* object, const char* name);
int64_t integer(PyObject* object, const char* name);

// Reads the dataclasses of a plan while it is made native.
class PlanReader {
 public:
  explicit PlanReader(PyObject* plan);

  // Steps hold Python objects as borrowed pointers; the executable owns them all in this one list, which the garbage
  // collector sees.
  PyObject* keep(PyObject* value) const;
  Ref take_kept() { return std::move(kept_); }

  Size size(PyObject* value) const;
  int32_t size_entry(PyObject* value) const;
  Sizes sizes(PyObject* sequence) const;
  SizeFill size_fill(PyObject* owner, const char* function, const char* entries) const;
  SymbolPlace symbol_place(PyObject* binding) const;
  int32_t slot(PyObject* value) const;
  int32_t slot_attribute(PyObject* step, const char* name) const;
  std::vector<int32_t> slots(PyObject* sequence) const;  // None becomes -1

  bool is_slot_ref(PyObject* value) const { return Py_TYPE(value) == slot_ref_; }
  bool is_size_ref(PyObject* value) const { return Py_TYPE(value) == size_ref_; }
  bool is_workspace(PyObject* value) const { return Py_TYPE(value) == workspace_; }
  // Does a nested argument mention a slot or a size?
  bool has_refs(PyObject* value) const;

  // The answer of a function of jitpy/runtime/plan.py about the plan.
  Ref analysis(const char* name, PyObject* plan) const;

  std::unique_ptr<Step> step(PyObject* value) const;
  std::unique_ptr<Step> bind_step(PyObject* value) const;

  int32_t n_inputs = 0;
  int32_t n_slots = 0;
  int32_t n_sizes = 0;
  int32_t n_symbols = 0;
  bool autograd = false;
  at::Device device = at::kCPU;
  // does a write to the slot move its version counter?
  bool is_seen(int32_t slot) const { return std::find(unseen_.begin(), unseen_.end(), slot) == unseen_.end(); }
  // per slot: is it a view that autograd need not know of?
  std::vector<bool> plain_view;

 private:
  std::vector<int32_t> unseen_;
  Ref module_;
  Ref kept_;
  PyTypeObject *alloc_, *kernel_, *launch_, *call_, *view_, *copy_, *bind_, *free_, *slot_ref_, *size_ref_, *workspace_;
};

// A Python argument with slots and sizes to be filled in.
class Template {
 public:
  Template(PyObject* value, const PlanReader& reader);
  Ref build(const Frame& frame) const;

 private:
  enum class Kind { constant, slot, size, tuple, list, dict, slice };
  Kind kind_;
  PyObject* constant_ = nullptr;  // borrowed: see PlanReader::keep
  int32_t index_ = 0;
  std::vector<Template> children_;
  std::vector<PyObject*> keys_;  // of a dict, borrowed
};

// An eager operator called through torch's dispatcher, without Python. `make` gives nothing where the step has to be
// called as Python: not an OpOverload, or arguments that only Python can convert.
std::unique_ptr<Step> make_operator_call(PyObject* step, const PlanReader& reader);

// A compiled GPU kernel, launched (cuda_launch.cpp).
std::unique_ptr<Step> make_launch(PyObject* step, const PlanReader& reader);

// Any callable, called as Python.
std::unique_ptr<Step> make_python_call(PyObject* step, const PlanReader& reader);

}  // namespace jitpy
