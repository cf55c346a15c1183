// The guard evaluator: a tree of access paths, flattened in pre-order.
//
// `jitpy/runtime/guards.py` lowers a guard set to the tuples that `Guard(...)` takes. A node reads one value from its
// parent's value, then runs the checks on it; values live on a stack indexed by depth, so that a shared prefix is read
// once. Checks that need two values, or all size symbols, run after the tree. Node `end` is the index behind the node's
// subtree: a subtree that is known to be unchanged can be skipped as a whole.
//
// No user code runs here except getters reached by "attr" steps and `python` guards. An `Exception` raised while
// a value is read means that the guard does not hold; anything else (KeyboardInterrupt) is passed on.
#include "guards.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "guard_program.h"
#include "guard_snapshot.h"
#include "guard_values.h"
#include "guard_walk.h"
#include "module.h"
#include "sizes_program.h"
#include "tensor_facts.h"

namespace {

PyObject* torch_device_globals;  // dict of torch.utils._device
PyObject* current_device_name;   // "CURRENT_DEVICE"

struct Guards;

struct GuardObject {
  PyObject_HEAD Guards* guards;
};

extern PyTypeObject guard_type;

// ---- evaluation ----

// The entry of a class's own dict under the name, borrowed; null where there is none.
PyObject* held_by(PyObject* cls, PyObject* name) {
  PyObject* dict = instance_dict(cls);
  PyObject* found = dict == nullptr ? nullptr : PyDict_GetItemWithError(dict, name);
  if (found == nullptr) PyErr_Clear();
  Py_XDECREF(dict);
  return found;
}

bool has_bases(PyTypeObject* type, const std::vector<Ref>& expected) {
  PyObject* mro = type->tp_mro;
  if (mro == nullptr || PyTuple_GET_SIZE(mro) != static_cast<Py_ssize_t>(expected.size())) return false;
  for (size_t i = 0; i < expected.size(); i++) {
    PyObject* base = expected[i].get();
    if (!PyType_Check(base)) base = referent(base);
    if (PyTuple_GET_ITEM(mro, i) != base) return false;
  }
  return true;
}

bool class_passes(ClassCheck& check) {
  PyObject* cls = check.cls.get();
  if (!PyType_Check(cls) && (cls = referent(cls)) == nullptr) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(cls);
#if PY_VERSION_HEX >= 0x030D0000
  const auto version = [&] { return type->tp_version_tag; };
#else
  const auto version = [&] { return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0; };
#endif
  const unsigned int now = version();
  if (now != 0 && now == check.version) return true;
  if (!has_bases(type, check.mro)) return false;
  for (const ClassCheck::Name& it : check.names) {
    PyObject* expected = it.weak ? referent(it.found.get()) : it.found.get();
    if (it.weak && expected == nullptr) return false;
    if (it.held && (expected = held_by(expected, it.name.get())) == nullptr) return false;
    if (_PyType_Lookup(type, it.name.get()) != expected) return false;
  }
  check.version = version();  // the lookups gave the class a version where it can have one
  return true;
}

// The default device is None or a torch.device in a module's dict. -1 with an exception set as in guard_evaluate.
int default_device_passes(PyObject* expected) {
  PyObject* found = PyDict_GetItemWithError(torch_device_globals, current_device_name);
  if (found == nullptr) return clear_exception();
  if (found == Py_None || expected == Py_None) return found == expected;
  PyObject* text = PyObject_Str(found);
  if (text == nullptr) return clear_exception();
  const int equal = PyUnicode_Compare(text, expected) == 0;
  Py_DECREF(text);
  return equal;
}

bool all_distinct(const std::vector<int>& keeps, PyObject* const* kept) {
  const size_t n = keeps.size();
  if (n <= 12) {
    for (size_t i = 0; i < n; i++)
      for (size_t j = 0; j < i; j++)
        if (kept[keeps[i]] == kept[keeps[j]]) return false;
    return true;
  }
  size_t size = 32;
  while (size < 2 * n) size *= 2;
  std::vector<PyObject*> table(size, nullptr);
  for (const int keep : keeps) {
    size_t slot = (reinterpret_cast<uintptr_t>(kept[keep]) >> 4) & (size - 1);
    for (; table[slot] != nullptr; slot = (slot + 1) & (size - 1))
      if (table[slot] == kept[keep]) return false;
    table[slot] = kept[keep];
  }
  return true;
}

// Call `callable(*args)` and consume the arguments. 1, 0, -1 as guard_evaluate.
int ask_python(PyObject* callable, PyObject** args, size_t n) {
  PyObject* result = PyObject_Vectorcall(callable, args, n, nullptr);
  for (size_t i = 0; i < n; i++) Py_DECREF(args[i]);
  if (result == nullptr) return clear_exception();
  const int truth = PyObject_IsTrue(result);
  Py_DECREF(result);
  return truth < 0 ? clear_exception() : truth;
}

// Call the check's callable with its values, then the sizes that it is about.
int ask_callable(const FinalCheck& check, PyObject* const* kept, const int64_t* symbols) {
  if (check.keeps.size() == 1 && check.symbols.empty()) {
    PyObject* args[1] = {Py_NewRef(kept[check.keeps[0]])};
    return ask_python(check.object.get(), args, 1);
  }
  std::vector<PyObject*> args;
  for (const int keep : check.keeps) args.push_back(Py_NewRef(kept[keep]));
  for (const int slot : check.symbols) {
    PyObject* number = PyLong_FromLongLong(symbols[slot]);
    if (number == nullptr) {
      for (PyObject* arg : args) Py_DECREF(arg);
      return clear_exception();
    }
    args.push_back(number);
  }
  return ask_python(check.object.get(), args.data(), args.size());
}

int final_passes(const FinalCheck& check, PyObject* const* kept, const int64_t* symbols) {
  switch (check.kind) {
    case FinalKind::kSame:
      return kept[check.keeps[0]] == kept[check.keeps[1]];
    case FinalKind::kDistinct:
      return all_distinct(check.keeps, kept);
    case FinalKind::kOverlap: {
      PyObject* value = kept[check.keeps[0]];
      for (const int keep : check.keeps)
        if (!is_tensor_class(reinterpret_cast<PyObject*>(Py_TYPE(kept[keep])))) return 0;
      for (size_t i = 1; i < check.keeps.size(); i++)
        if (storages_overlap(value, kept[check.keeps[i]])) return 0;
      return 1;
    }
    case FinalKind::kRelation:
      if (!check.program.empty()) {
        const SizeVerdict verdict = run_size_program(check.program, symbols);
        if (verdict != SizeVerdict::kUnknown) return verdict == SizeVerdict::kTrue;
      }
      return ask_callable(check, kept, symbols);
    case FinalKind::kPython:
      return ask_callable(check, kept, symbols);
  }
  return 0;
}

// ---- units ----

// The nodes below one root, or below all constant roots, with the snapshots of what was found there.
class Unit {
 public:
  Unit(Program& program, int begin, int end) : program_(program), begin_(begin), end_(end) {}

  // Check all nodes: 1, 0 or -1.
  int passes(const Frame& frame, PyObject** values, Kept& kept, int64_t* symbols);
  int begin() const { return begin_; }
  int end() const { return end_; }
  // The same by walking.
  int walk(const Frame& frame, PyObject** values, Kept& kept, int64_t* symbols) {
    current_ = nullptr;
    return walk_nodes(program_, begin_, end_, frame, values, kept, symbols);
  }

  bool has(int node) const { return begin_ <= node && node < end_; }
  // The snapshot that answered last, or null where the nodes were walked.
  const Snapshot* current() const { return current_; }
  Snapshot::Counts counts() const { return current_ == nullptr ? Snapshot::Counts{} : current_->counts(); }

 private:
  static constexpr int kWorthwhile = 6;        // nodes; fewer are walked as quickly
  static constexpr size_t kSnapshots = 16;     // for objects that take turns in one place
  static constexpr unsigned int kServed = 64;  // checks after which a snapshot has paid for itself

  Snapshot* find(const Frame& frame);

  Program& program_;
  int begin_, end_;
  std::vector<std::unique_ptr<Snapshot>> snapshots_;  // last used first
  Snapshot* current_ = nullptr;
};

Snapshot* Unit::find(const Frame& frame) {
  for (size_t i = 0; i < snapshots_.size(); i++) {
    if (!snapshots_[i]->is_about(frame)) continue;
    if (i > 0) std::rotate(snapshots_.begin(), snapshots_.begin() + i, snapshots_.begin() + i + 1);
    return snapshots_[0].get();
  }
  if (snapshots_.size() < kSnapshots) snapshots_.push_back(std::make_unique<Snapshot>(program_, begin_, end_));
  std::rotate(snapshots_.begin(), snapshots_.end() - 1, snapshots_.end());
  snapshots_[0]->look_at(frame);
  return snapshots_[0].get();
}

int Unit::passes(const Frame& frame, PyObject** values, Kept& kept, int64_t* symbols) {
  const bool chosen = program_.nodes[begin_].step == Step::kIndexBy;  // in most calls another one than before
  if (chosen || end_ - begin_ < kWorthwhile) return walk(frame, values, kept, symbols);
  Snapshot* snapshot = find(frame);
  current_ = snapshot;
  if (snapshot->recorded()) {
    const int found = snapshot->check(frame, kept, symbols);
    if (found != kWalk) return found;
    // Whatever is replaced often is recorded less and less often.
    const unsigned int patience = snapshot->served >= kServed ? 1 : std::min(2 * snapshot->patience, 1u << 16);
    const int passes = walk(frame, values, kept, symbols);
    if (passes != 1) return passes;
    snapshot->forget();
    snapshot->patience = patience;
    snapshot->sightings = 1;
    return 1;
  }
  if (++snapshot->sightings <= snapshot->patience) return walk(frame, values, kept, symbols);
  return snapshot->record(frame, values, kept, symbols);
}

// ---- evaluation ----

// A guard program and what is known of earlier evaluations.
struct Guards {
  explicit Guards(std::unique_ptr<Program> made) : program(std::move(made)) {
    const int n = static_cast<int>(program->nodes.size());
    for (int begin = 0, end; begin < n; begin = end) {
      end = program->nodes[begin].end;
      if (is_constant(program->nodes[begin].step))
        while (end < n && is_constant(program->nodes[end].step)) end = program->nodes[end].end;
      units.emplace_back(*program, begin, end);
    }
    serials.resize(units.size());
    for (FinalCheck& check : program->finals)
      for (const int keep : check.keeps) check.units |= bit(unit_of(program->keep_nodes[keep]));
  }

  int evaluate(const Frame& frame);
  uint64_t news();
  void fetch(const FinalCheck& check, Kept& kept) const;
  void fetch(int keep, Kept& kept) const;

  size_t unit_of(int node) const {
    size_t i = 0;
    while (!units[i].has(node)) i++;
    return i;
  }
  static uint64_t bit(size_t unit) { return uint64_t{1} << std::min(unit, size_t{63}); }

  std::unique_ptr<Program> program;
  std::vector<Unit> units;
  std::vector<uint64_t> serials;  // of the units' snapshots, when all checks held last
  bool busy = false;  // an evaluation is on: getters and predicates may run code that comes back here
};

// The units that hold other objects than when all checks held last, a bit each.
uint64_t Guards::news() {
  uint64_t changed = 0;
  for (size_t i = 0; i < units.size(); i++) {
    const Snapshot* snapshot = units[i].current();
    const uint64_t serial = snapshot == nullptr ? 0 : snapshot->serial();
    if (serial == 0 || serial != serials[i]) changed |= bit(i);
    serials[i] = serial;
  }
  return changed;
}

// Get the check's values out of the snapshots.
void Guards::fetch(const FinalCheck& check, Kept& kept) const {
  for (const int keep : check.keeps) fetch(keep, kept);
}

void Guards::fetch(int keep, Kept& kept) const {
  if (kept.get(keep) != nullptr) return;
  const int node = program->keep_nodes[keep];
  kept.put(keep, units[unit_of(node)].current()->value(node));
}

constexpr int kStackValues = 64, kStackSymbols = 64;

int Guards::evaluate(const Frame& frame) {
  for (const auto& [state, default_device] : program->states) {
    if (!state_passes(state)) return 0;
    const int passes = default_device_passes(default_device.get());
    if (passes != 1) return passes;
  }
  if (!attention_passes(program->attention)) return 0;
  for (ClassCheck& check : program->classes)
    if (!class_passes(check)) return 0;
  PyObject* few_values[kStackValues];
  int64_t few_symbols[kStackSymbols];
  std::unique_ptr<PyObject*[]> many_values;
  std::unique_ptr<int64_t[]> many_symbols;
  PyObject** values = few_values;
  int64_t* symbols = few_symbols;
  const int depths = program->depths;
  if (depths > kStackValues) values = (many_values = std::make_unique<PyObject*[]>(depths)).get();
  if (program->symbols > kStackSymbols) symbols = (many_symbols = std::make_unique<int64_t[]>(program->symbols)).get();
  std::memset(values, 0, sizeof(PyObject*) * depths);
  std::optional<NoTorchFunction> no_overrides;
  if (program->runs_python) no_overrides.emplace();
  Kept kept(program->keeps);
  const bool alone = !busy;
  busy = true;
  int passes = 1;
  for (size_t i = 0; i < units.size() && passes == 1; i++) {
    passes = alone ? units[i].passes(frame, values, kept, symbols)
                   : walk_nodes(*program, units[i].begin(), units[i].end(), frame, values, kept, symbols);
    for (size_t c = 0; c < program->choices.size() && passes == 1; c++) {  // before any other code runs
      const int keep = program->choices[c].keep;
      if (units[i].has(program->keep_nodes[keep])) fetch(keep, kept);
    }
  }
  // Whether two values are one object stays so while both are. Other checks look into them.
  const uint64_t changed = alone && passes == 1 ? news() : ~uint64_t{0};
  const auto settled = [&](const FinalCheck& check) {
    return (check.kind == FinalKind::kSame || check.kind == FinalKind::kDistinct) && (check.units & changed) == 0;
  };
  // All values are fetched before a predicate runs, which may change what the snapshots are about.
  for (size_t i = 0; alone && i < program->finals.size() && passes == 1; i++)
    if (!settled(program->finals[i])) fetch(program->finals[i], kept);
  for (size_t i = 0; i < program->finals.size() && passes == 1; i++)
    if (!settled(program->finals[i])) passes = final_passes(program->finals[i], kept.all(), symbols);
  if (alone && passes != 1) std::fill(serials.begin(), serials.end(), 0);
  if (alone) busy = false;
  drop_all(values, depths);
  return passes;
}

// ---- the type ----

PyObject* guard_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  auto program = parse_program(args, kwargs);
  if (program == nullptr) return nullptr;
  auto* self = reinterpret_cast<GuardObject*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->guards = new Guards(std::move(program));
  return reinterpret_cast<PyObject*>(self);
}

int guard_traverse(PyObject* object, visitproc visit, void* arg) {
  const Guards* guards = reinterpret_cast<GuardObject*>(object)->guards;
  if (guards == nullptr) return 0;
  const Program* program = guards->program.get();
  for (const Node& node : program->nodes) Py_VISIT(node.arg.get());
  for (const Check& check : program->checks) Py_VISIT(check.object.get());
  for (const FinalCheck& check : program->finals) Py_VISIT(check.object.get());
  for (const ClassCheck& check : program->classes) {
    Py_VISIT(check.cls.get());
    for (const Ref& base : check.mro) Py_VISIT(base.get());
    for (const ClassCheck::Name& it : check.names) {
      Py_VISIT(it.name.get());
      Py_VISIT(it.found.get());
    }
  }
  return 0;
}

int guard_clear(PyObject* object) {
  auto* self = reinterpret_cast<GuardObject*>(object);
  Guards* guards = self->guards;
  self->guards = nullptr;
  delete guards;
  return 0;
}

void guard_dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  guard_clear(self);
  Py_TYPE(self)->tp_free(self);
}

PyObject* guard_check(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  if (n < 2 || n > 3 || !PyTuple_Check(args[0]) || !PyDict_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "check(params: tuple, globals: dict, closure: tuple | None = None)");
    return nullptr;
  }
  PyObject* const* params = reinterpret_cast<PyTupleObject*>(args[0])->ob_item;
  const int passes = guard_evaluate(self, params, PyTuple_GET_SIZE(args[0]), args[1], n == 3 ? args[2] : nullptr);
  return passes < 0 ? nullptr : PyBool_FromLong(passes);
}

PyObject* guard_noted(PyObject* object, PyObject*) {
  const Guards* guards = reinterpret_cast<GuardObject*>(object)->guards;
  Snapshot::Counts all{};
  for (size_t i = 0; guards != nullptr && i < guards->units.size(); i++) {
    const Snapshot::Counts counts = guards->units[i].counts();
    all.words += counts.words;
    all.tensors += counts.tensors;
    all.dicts += counts.dicts;
    all.residuals += counts.residuals;
  }
  return Py_BuildValue("{s:n,s:n,s:n,s:n}", "words", all.words, "tensors", all.tensors, "watched", all.dicts, "reads",
                       all.residuals);
}

PyObject* guard_walked(PyObject* object, void*) {
  const Guards* guards = reinterpret_cast<GuardObject*>(object)->guards;
  return PyLong_FromUnsignedLongLong(guards == nullptr ? 0 : guards->program->walked);
}

PyGetSetDef guard_getset[] = {
    {"walked", guard_walked, nullptr, "paths that were followed, in all calls so far, where no snapshot answered",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef guard_methods[] = {
    {"noted", guard_noted, METH_NOARGS,
     "noted() -> dict: how many words, tensors and watched dicts the last snapshots compare, and reads they repeat"},
    {"check", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guard_check)), METH_FASTCALL,
     "check(params, globals, closure=None) -> bool: whether every fact holds"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject make_guard_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "_jitpy_runtime.Guard";
  type.tp_doc = "A guard set compiled to a tree of access paths; made by jitpy.runtime.guards.";
  type.tp_basicsize = sizeof(GuardObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_new = guard_new;
  type.tp_dealloc = guard_dealloc;
  type.tp_traverse = guard_traverse;
  type.tp_clear = guard_clear;
  type.tp_methods = guard_methods;
  type.tp_getset = guard_getset;
  return type;
}

PyTypeObject guard_type = make_guard_type();

PyObject* py_storages_overlap(PyObject*, PyObject* args) {
  PyObject *a, *b;
  if (!PyArg_ParseTuple(args, "OO:storages_overlap", &a, &b)) return nullptr;
  for (PyObject* object : {a, b}) {
    if (is_tensor_class(reinterpret_cast<PyObject*>(Py_TYPE(object)))) continue;
    PyErr_Format(PyExc_TypeError, "storages_overlap takes tensors, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  return PyBool_FromLong(storages_overlap(a, b));
}

PyMethodDef module_functions[] = {
    {"storages_overlap", py_storages_overlap, METH_VARARGS,
     "storages_overlap(a, b) -> bool: whether two tensors' storages share bytes"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool guard_check_exact(PyObject* object) { return Py_IS_TYPE(object, &guard_type); }

int guard_evaluate(PyObject* guard, PyObject* const* params, Py_ssize_t n, PyObject* globals, PyObject* closure) {
  Guards* guards = reinterpret_cast<GuardObject*>(guard)->guards;
  if (guards == nullptr) return 0;  // cleared by the garbage collector
  return guards->evaluate({params, n, globals, closure});
}

int init_guards(PyObject* module) {
  if (init_guard_values() < 0) return -1;
  PyObject* device_module = PyImport_ImportModule("torch.utils._device");
  if (device_module == nullptr) return -1;
  torch_device_globals = Py_XNewRef(PyModule_GetDict(device_module));
  Py_DECREF(device_module);
  if ((current_device_name = PyUnicode_InternFromString("CURRENT_DEVICE")) == nullptr) return -1;
  if (PyModule_AddFunctions(module, module_functions) < 0) return -1;
  if (PyType_Ready(&guard_type) < 0) return -1;
  return PyModule_AddObjectRef(module, "Guard", reinterpret_cast<PyObject*>(&guard_type));
}
