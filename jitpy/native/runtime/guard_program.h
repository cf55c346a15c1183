// A guard set as data: a tree of access paths, flattened in pre-order, with the checks on each value.
#pragma once

#include <Python.h>

#include <memory>
#include <utility>
#include <vector>

#include "ref.h"
#include "sizes_program.h"
#include "tensor_facts.h"

using jitpy::Ref;

enum class Step : uint8_t {
  kLocal,
  kClosure,
  kClosureCell,
  kGlobals,
  kConst,
  kWeakConst,  // the referent of a weak reference
  kAttr,
  kDict,
  kItem,
  kIndex,
  kType,
  kSlot,
  kCell,
  kIndexBy  // a root: the item of the list or tuple in another node, at a place that symbols say
};

// Whether a root is the same object at each evaluation.
inline bool is_constant(Step step) { return step == Step::kConst || step == Step::kWeakConst; }

enum class CheckKind : uint8_t {
  kType,
  kId,
  kWeakId,
  kWeakType,
  kEq,
  kLen,
  kKeys,
  kHasKey,
  kNoKey,
  kTensor,
  kInt,
  kFunction,
  kEmpty
};

enum class FinalKind : uint8_t { kSame, kDistinct, kOverlap, kRelation, kPython };

struct Node {
  Step step;
  int depth;  // 0 for roots
  int end;    // index of the first node behind this subtree
  int keep;   // slot in which the value is kept for the final checks, or -1
  Py_ssize_t index;
  Ref arg;
  Py_hash_t hash;
  int checks_begin, checks_end;
  int churn = 0;  // times that another object was in the value's place
};

// Where the value of a kIndexBy node is found.
struct Choice {
  int keep;  // of the list or tuple
  SizeProgram place;
};

struct Check {
  CheckKind kind;
  Py_ssize_t number;  // len: items; haskey, nokey: the key's hash; int: symbol slot
  bool bind;          // int: first mention of the symbol
  int64_t low, high;  // int: range where it binds
  Ref object;
  std::unique_ptr<TensorCheck> tensor;
};

struct ClassCheck {
  struct Name {
    Ref name, found;  // null where no class defines it
    bool weak;        // `found` is a weak reference
    bool held;        // `found` is the class whose own dict holds what is found
  };
  Ref cls;                   // or a weak reference
  unsigned int version = 0;  // tp_version_tag at the last full check that held; 0: none
  std::vector<Name> names;
  std::vector<Ref> mro;  // classes or weak references
};

// The object that a weak reference refers to, borrowed; null where that is gone.
inline PyObject* referent(PyObject* weakref) {
  PyObject* found = PyWeakref_GET_OBJECT(weakref);
  return found == Py_None ? nullptr : found;
}

struct FinalCheck {
  FinalKind kind;
  std::vector<int> keeps;    // same: two; distinct: all; overlap: value, then the others; python: any number
  std::vector<int> symbols;  // relation, python: slots of the (last) arguments of `object`
  SizeProgram program;       // relation: may be empty
  Ref object;                // relation, python: callable
  uint64_t units = 0;        // same, distinct: those that hold the values, a bit each; all for other kinds
};

struct Program {
  std::vector<Node> nodes;
  std::vector<Check> checks;
  std::vector<Choice> choices;  // by the `index` of kIndexBy nodes
  std::vector<ClassCheck> classes;
  std::vector<FinalCheck> finals;
  std::vector<std::pair<StateCheck, Ref>> states;  // the second: the default device, None or a str
  AttentionCheck attention;
  bool runs_python = false;                        // an "attr" or "slot" step, or a Python predicate
  int depths = 0, keeps = 0, symbols = 0;
  std::vector<int> keep_nodes;  // by slot
  mutable uint64_t walked = 0;  // nodes that were visited without a snapshot
};

// Build a program from the arguments of `_jitpy_runtime.Guard` (tuples; see `GuardTree.native_program` in
// jitpy/runtime/guards.py). Null with an exception set where they make no sense.
std::unique_ptr<Program> parse_program(PyObject* args, PyObject* kwargs);
