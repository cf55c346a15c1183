// The rule: no guard believes the address of an object that it does not hold. Another object may lie there by now.
//
// A snapshot compares words in memory. Equal words prove equal facts for these reasons, one for each kind of fact:
//
//   constants (`kEq`)         The program or the snapshot holds the constant, so its address is not used again.
//   identity (`kId`)          The program holds the object.
//   weak identity, weak type  A weak reference that the program holds names the object, and forgets it when it dies:
//                             the place of the referent is a word of its own.
//   types                     `ob_type` is a word; checks hold the class that it is compared with, or refer to it
//                             weakly. It needs no word where the value came out of a noted dict: any change of that
//                             dict leads to `look_again`, which compares the type.
//   attributes and items of   The dict's version is a word (3.11: versions are never used twice, by no other dict
//   dicts, keys, lengths      either), or the dict is watched and tells of changes and of its end (3.12 and later).
//                             `__dict__` replaced: the pointer to the dict is a word.
//   items of lists            Size, place of the items and each item are words.
//   items of tuples           Size and items are words, though tuples do not change: another tuple may lie at the
//                             address. Only tuples that the program holds, and parts of them, need none.
//   slots, cells, defaults,   The place in the object is a word. Methods that the program holds need none.
//   code, closures
//   functions (`kFunction`)   Three words in the function; the program holds what they are compared with.
//   tensors                   Their facts are read anew at each check.
//   relations (same,          They follow from the addresses of live objects, which are compared as above.
//   distinct)
//   anything else             It is read at each check (`residuals_`).
//
// No word is read in memory that may be freed: words are compared in generations, and those of earlier generations say
// that the object is there, of which type it is, and where its parts are. A pointer in `Seen` is followed only once the
// words (or the dict) that lead to it have been compared.
#include "guard_snapshot.h"

#include <structmember.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "guard_values.h"
#include "guard_watch.h"

namespace {

uint64_t last_serial;

constexpr size_t kBlock = 8;  // words compared without a branch between them

constexpr int kChurn = 4;  // so many replacements of a value make it one that is read at each check

// Types whose instances can become instances of another type by assignment to `__class__`.
bool type_can_change(PyObject* value) {
  return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) || PyModule_Check(value);
}

// Whether the order of the keys is kept elsewhere than in the dict itself, where changes of it are not noted.
bool has_own_order(PyObject* value) {
  return PyObject_TypeCheck(value, &PyODict_Type) && PyDict_GET_SIZE(value) > 1;
}

// Give an object's dict storage of its own. On 3.13 stores into attributes that lie in the object itself neither
// raise an event nor change the dict's version. False, with no exception, where it cannot be had.
bool detach(PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  auto* object = reinterpret_cast<PyDictObject*>(dict);
  if (object->ma_values == nullptr) return true;
  bool done = true;
  PyObject* filler = nullptr;
  if (object->ma_used == 0) {
    filler = PyUnicode_InternFromString("_jitpy_filler");
    done = filler != nullptr && PyDict_SetItem(dict, filler, Py_None) == 0;
  }
  // `dict.popitem` turns the table into one of the dict's own.
  PyObject* item = done ? PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyDict_Type), "popitem", "O", dict) : nullptr;
  done = item != nullptr && (filler != nullptr ||
                             PyDict_SetItem(dict, PyTuple_GET_ITEM(item, 0), PyTuple_GET_ITEM(item, 1)) == 0);
  Py_XDECREF(item);
  Py_XDECREF(filler);
  if (!done) PyErr_Clear();
  return done && object->ma_values == nullptr;
#else
  return true;
#endif
}

const uint64_t* words_of(const void* address) { return static_cast<const uint64_t*>(address); }

// The place in a Python function that the attribute is read from, or null.
PyObject** function_field(PyObject* function, const char* name) {
  auto* f = reinterpret_cast<PyFunctionObject*>(function);
  if (std::strcmp(name, "__closure__") == 0) return &f->func_closure;
  if (std::strcmp(name, "__defaults__") == 0) return &f->func_defaults;
  if (std::strcmp(name, "__kwdefaults__") == 0) return &f->func_kwdefaults;
  if (std::strcmp(name, "__annotations__") == 0) return &f->func_annotations;
  if (std::strcmp(name, "__code__") == 0) return &f->func_code;
  return nullptr;
}

// As above, of bound methods, which are immutable.
PyObject** method_field(PyObject* method, const char* name) {
  auto* m = reinterpret_cast<PyMethodObject*>(method);
  if (std::strcmp(name, "__func__") == 0) return &m->im_func;
  if (std::strcmp(name, "__self__") == 0) return &m->im_self;
  return nullptr;
}

PyObject** member_field(PyObject* descriptor, PyObject* object) {
  if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return nullptr;
  const PyMemberDef* member = reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
  if (member->type != T_OBJECT_EX && member->type != T_OBJECT) return nullptr;
  if (!PyObject_TypeCheck(object, PyDescr_TYPE(descriptor))) return nullptr;
  return reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + member->offset);
}

}  // namespace

// ---- roots ----

bool Snapshot::is_about(const Frame& frame) const {
  if (roots.empty()) return true;
  return read_root(program_.nodes[begin_], frame) == roots[0];
}

void Snapshot::look_at(const Frame& frame) {
  forget();
  roots.clear();
  if (!is_constant(program_.nodes[begin_].step)) roots.push_back(read_root(program_.nodes[begin_], frame));
  sightings = 0;
  patience = 1;
}

void Snapshot::forget() {
  for (const auto& [dict, node] : watched_) unwatch_dict(dict, this);
  watched_.clear();
  noted_.clear();
  addresses_.clear();
  expected_.clear();
  owners_.clear();
  tensors_.clear();
  tensor_nodes_.clear();
  tensor_numbers_.clear();
  residuals_.clear();
  changed_.clear();
  recorded_ = freed_ = false;
  std::vector<Seen>().swap(seen_);
}

void Snapshot::dict_changed(int node) {
  Seen& it = seen(node);
  if (it.changed) return;
  it.changed = true;
  changed_.push_back(node);
}

// ---- recording ----

// Generations of words, by the depth of the node whose value they lie in. A word is read only if all words of earlier
// generations are as recorded: they say that the object is there, of which type it is, and where its parts are.
constexpr int before(int depth) { return 4 * depth; }       // in weak references to the value
constexpr int type_of(int depth) { return 4 * depth + 1; }  // the value's type
constexpr int in(int depth) { return 4 * depth + 2; }       // in the value
constexpr int behind(int depth) { return 4 * depth + 3; }   // where words in the value say, such as a list's items

void Snapshot::note(const void* address, int owner, int generation, bool rigid = false) {
  noted_.push_back({words_of(address), *words_of(address), rigid ? ~owner : owner, generation});
}

// Bring the noted words into the order in which they are compared.
void Snapshot::arrange_words() {
  const auto key = [](const Word& word) { return std::make_tuple(word.generation, word.address, word.owner); };
  std::sort(noted_.begin(), noted_.end(), [&](const Word& a, const Word& b) { return key(a) < key(b); });
  const auto add = [this](const Word& word) {
    addresses_.push_back(word.address);
    expected_.push_back(word.expected);
    owners_.push_back(word.owner);
  };
  const auto equal = [&](const Word& a, const Word& b) { return key(a) == key(b); };
  noted_.erase(std::unique(noted_.begin(), noted_.end(), equal), noted_.end());
  for (size_t i = 0; i < noted_.size(); i++) {
    if (i > 0 && noted_[i].generation != noted_[i - 1].generation)
      while (addresses_.size() % kBlock != 0) add(noted_[i - 1]);
    add(noted_[i]);
  }
  while (addresses_.size() % kBlock != 0) add(noted_.back());
  n_words_ = noted_.size();
  std::vector<Word>().swap(noted_);
}

void Snapshot::note_dict(int node, PyObject* dict) {
  Seen& it = seen(node);
  if (it.dict_noted) return;
  it.dict_noted = true;
  if (watch_dict(dict, this, node))
    watched_.emplace_back(dict, node);
  else
    note(&reinterpret_cast<PyDictObject*>(dict)->ma_version_tag, node, in(program_.nodes[node].depth));
}

// Note what would change if the step from the parent's value led elsewhere. False: it has to be made at each check.
bool Snapshot::note_step(int index, int parent) {
  const Node& node = program_.nodes[index];
  Seen& it = seen(index);
  if (node.depth == 0) {
    it.held = is_constant(node.step);
    it.typed = it.held || node.step == Step::kGlobals;
    if (node.step == Step::kWeakConst)
      note(&reinterpret_cast<PyWeakReference*>(node.arg.get())->wr_object, index, before(0), true);
    return true;
  }
  const Seen& owner = seen(parent);
  PyObject *base = owner.value, **place = nullptr;
  const int in_parent = in(node.depth - 1);
  switch (node.step) {
    case Step::kDict: {
      it.typed = true;  // it is noted as a dict below: another one has another version, or we hear of this one's end
      if (PyType_Check(base)) {
        if (!PyType_HasFeature(reinterpret_cast<PyTypeObject*>(base), Py_TPFLAGS_HEAPTYPE)) return detach(it.value);
        place = &reinterpret_cast<PyTypeObject*>(base)->tp_dict;
      } else {
        place = _PyObject_GetDictPtr(base);
      }
      if (place == nullptr || *place != it.value || !detach(it.value)) return false;
      note(place, parent, in_parent, true);
      note_dict(index, it.value);
      return true;
    }
    case Step::kItem:
      it.typed = true;
      note_dict(parent, base);
      return true;
    case Step::kIndex: {
      const Py_ssize_t i = node.index < 0 ? node.index + Py_SIZE(base) : node.index;
      if (PyList_Check(base)) {
        note(&reinterpret_cast<PyVarObject*>(base)->ob_size, parent, in_parent, true);
        note(&reinterpret_cast<PyListObject*>(base)->ob_item, parent, in_parent, true);
        note(&PyList_GET_ITEM(base, i), parent, behind(node.depth - 1));
      } else if (owner.held) {
        it.held = it.typed = true;
      } else {
        note(&reinterpret_cast<PyVarObject*>(base)->ob_size, parent, in_parent, true);
        note(&PyTuple_GET_ITEM(base, i), parent, behind(node.depth - 1));
      }
      return true;
    }
    case Step::kType:
      return true;
    case Step::kSlot:
      place = member_field(node.arg.get(), base);
      break;
    case Step::kCell:
      place = &reinterpret_cast<PyCellObject*>(base)->ob_ref;
      break;
    case Step::kAttr: {
      const char* name = PyUnicode_AsUTF8(node.arg.get());
      if (name == nullptr) {
        PyErr_Clear();
        return false;
      }
      if (PyFunction_Check(base)) place = function_field(base, name);
      if (PyMethod_Check(base) && (place = method_field(base, name)) != nullptr && owner.held) {
        it.held = it.typed = *place == it.value;
        return it.held;
      }
      break;
    }
    default:
      return false;
  }
  if (place == nullptr || (*place == nullptr ? Py_None : *place) != it.value) return false;
  note(place, parent, in_parent);
  return true;
}

// Note what would change if the check's answer did. False: it has to be made at each check.
bool Snapshot::note_check(int index, const Check& check) {
  Seen& it = seen(index);
  PyObject* value = it.value;
  const int in_value = in(program_.nodes[index].depth);
  switch (check.kind) {
    case CheckKind::kType:
    case CheckKind::kId:
      return true;
    case CheckKind::kWeakId:
    case CheckKind::kWeakType:
      note(&reinterpret_cast<PyWeakReference*>(check.object.get())->wr_object, index, in_value);
      return true;
    case CheckKind::kEq:
      if (!it.typed) it.constant = Ref(Py_NewRef(value));
      return true;
    case CheckKind::kLen:
      if (PyDict_Check(value)) {
        note_dict(index, value);
      } else if (PyList_Check(value) || (PyTuple_Check(value) && !it.typed)) {
        note(&reinterpret_cast<PyVarObject*>(value)->ob_size, index, in_value);
      } else if (PyAnySet_Check(value)) {
        note(&reinterpret_cast<PySetObject*>(value)->used, index, in_value);
      } else {
        return PyTuple_Check(value);
      }
      it.leaf = it.leaf && PyTuple_Check(value) && it.typed;
      return true;
    case CheckKind::kKeys:
    case CheckKind::kHasKey:
    case CheckKind::kNoKey:
      it.leaf = false;
      note_dict(index, value);
      return check.kind != CheckKind::kKeys || !has_own_order(value);
    case CheckKind::kTensor: {
      TensorStamp stamp;
      if (!make_tensor_stamp(value, *check.tensor, static_cast<int>(tensor_numbers_.size()), &stamp)) return false;
      for (const auto* numbers : {&check.tensor->sizes, &check.tensor->strides})
        tensor_numbers_.insert(tensor_numbers_.end(), numbers->begin(), numbers->end());
      tensors_.push_back(stamp);
      tensor_nodes_.push_back(index);
      return true;
    }
    case CheckKind::kInt:
      return false;
    case CheckKind::kFunction: {
      auto* function = reinterpret_cast<PyFunctionObject*>(value);
      note(&function->func_code, index, in_value);
      note(&function->func_defaults, index, in_value);
      note(&function->func_kwdefaults, index, in_value);
      note(&function->func_dict, index, in_value);
      if (function->func_dict != nullptr)
        note(&reinterpret_cast<PyDictObject*>(function->func_dict)->ma_version_tag, index, in_value);
      it.leaf = false;
      return true;
    }
    case CheckKind::kEmpty:
      note(&reinterpret_cast<PyCellObject*>(value)->ob_ref, index, in_value);
      it.leaf = false;
      return true;
  }
  return false;
}

// Note what the node's checks, and the steps from its value, depend on. False: the checks are to be made each time.
bool Snapshot::note_value(int index) {
  const Node& node = program_.nodes[index];
  Seen& it = seen(index);
  const bool children = node.end > index + 1;
  bool by_type = children, noted = node.depth > 0 || is_constant(node.step);
  it.leaf = !children;
  for (int i = node.checks_begin; i < node.checks_end; i++) {
    const CheckKind kind = program_.checks[i].kind;
    by_type |= kind != CheckKind::kId && kind != CheckKind::kWeakId && kind != CheckKind::kEq &&
               kind != CheckKind::kTensor && kind != CheckKind::kInt;
  }
  if (by_type && (!it.typed || type_can_change(it.value))) {
    note(&it.value->ob_type, index, type_of(node.depth), true);
    it.leaf = false;
  }
  for (int i = node.checks_begin; i < node.checks_end; i++) noted = note_check(index, program_.checks[i]) && noted;
  return noted;
}

int Snapshot::record(const Frame& frame, PyObject** values, Kept& kept, int64_t* symbols) {
  forget();
  seen_.resize(end_ - begin_);
  keeps_are_recorded_ = true;
  std::vector<int> path(program_.depths), place(program_.depths, -1);  // by depth: the node, and where in `residuals_`
  for (int i = begin_; i < end_; i++) {
    const Node& node = program_.nodes[i];
    const int parent = node.depth > 0 ? path[node.depth - 1] : -1;
    PyObject* value = read_node(node, node.depth > 0 ? values[node.depth - 1] : nullptr, frame);
    const int passes = value == nullptr ? clear_exception() : checks_pass(program_, node, value, symbols);
    if (value != nullptr) Py_XSETREF(values[node.depth], value);
    if (passes != 1) {
      forget();
      return passes;
    }
    if (node.keep >= 0) kept.put(node.keep, value);
    Seen& it = seen(i);
    it.value = value;
    it.type = Py_TYPE(value);
    path[node.depth] = i;
    const int base = node.depth > 0 ? place[node.depth - 1] : -1;
    it.fresh = (parent >= 0 && seen(parent).fresh) || node.churn >= kChurn || !note_step(i, parent);
    const bool settled = !it.fresh && note_value(i);
    place[node.depth] = it.fresh ? static_cast<int>(residuals_.size()) : -1;
    if (!settled) residuals_.push_back({i, parent, base, it.fresh});
    if (it.fresh && node.keep >= 0) keeps_are_recorded_ = false;
  }
  arrange_words();
  serial_ = ++last_serial;
  recorded_ = true;
  served = 0;
  return 1;
}

// ---- checking ----

// Something in the node's value changed: check it again, and what is read from it. kHolds, kFails, -1, or kWalk.
int Snapshot::look_again(int index, int64_t* symbols) {
  Node& node = program_.nodes[index];
  const Frame no_frame{};
  PyObject* base = seen(index).value;
  int passes = checks_pass(program_, node, base, symbols);
  if (passes != 1) return passes == 0 ? kWalk : passes;
  for (int child = index + 1; child < node.end; child = program_.nodes[child].end) {
    Seen& it = seen(child);
    if (it.fresh) continue;
    Node& below = program_.nodes[child];
    PyObject* value = read_node(below, base, no_frame);
    passes = value == nullptr ? clear_exception() : checks_pass(program_, below, value, symbols);
    if (passes == 1 && (value != it.value || Py_TYPE(value) != it.type)) {
      if (!it.leaf) {
        below.churn++;
        passes = 0;
      } else {
        for (size_t i = 0; passes == 1 && i < tensor_nodes_.size(); i++)
          if (tensor_nodes_[i] == child && !restamp_tensor(value, &tensors_[i])) passes = 0;
        if (it.constant.get() != nullptr) it.constant = Ref(Py_NewRef(value));
        it.value = value;
        it.type = Py_TYPE(value);
        if (below.keep >= 0) serial_ = ++last_serial;
      }
    }
    Py_XDECREF(value);
    if (passes != 1) return passes == 0 ? kWalk : passes;
  }
  return kHolds;
}

int Snapshot::check_words(int64_t* symbols) {
  const uint64_t* const* const addresses = addresses_.data();
  uint64_t* const expected = expected_.data();
  for (size_t begin = 0; begin < addresses_.size(); begin += kBlock) {
    uint64_t differences = 0;
    for (size_t i = begin; i < begin + kBlock; i++) differences |= *addresses[i] ^ expected[i];
    if (__builtin_expect(differences == 0, 1)) continue;
    for (size_t i = begin; i < begin + kBlock; i++) {
      if (*addresses[i] == expected[i]) continue;
      if (owners_[i] < 0) return kWalk;
      const int looked = look_again(owners_[i], symbols);
      if (looked != kHolds) return looked;
      expected[i] = *addresses[i];
    }
  }
  return kHolds;
}

int Snapshot::check_tensors(int64_t* symbols) {
  const size_t n = tensors_.size();
  for (size_t i = 0; (i = differing_tensor(tensors_.data(), tensor_numbers_.data(), i, n)) < n; i++) {
    const int passes = checks_pass(program_, program_.nodes[tensor_nodes_[i]], tensors_[i].object, symbols);
    if (passes != 1) return passes;
    if (!restamp_tensor(tensors_[i].object, &tensors_[i])) return kWalk;
  }
  return kHolds;
}

int Snapshot::check_residuals(const Frame& frame, Kept& kept, int64_t* symbols) {
  constexpr size_t kFew = 32;
  const size_t n = residuals_.size();
  PyObject* few[2 * kFew];
  std::vector<PyObject*> many(n > kFew ? 2 * n : 0);
  PyObject **values = n > kFew ? many.data() : few, **bases = values + n;
  // Getters may run code that changes what was recorded: hold on to what is read from.
  for (size_t i = 0; i < n; i++) {
    const Residual& it = residuals_[i];
    values[i] = nullptr;
    bases[i] = it.source >= 0 ? nullptr : Py_NewRef(seen(it.read ? it.parent : it.node).value);
  }
  int passes = kHolds;
  for (size_t i = 0; i < n && passes == kHolds; i++) {
    const Residual it = residuals_[i];
    const Node& node = program_.nodes[it.node];
    if (it.read)
      values[i] = read_node(node, it.source < 0 ? bases[i] : values[it.source], frame);
    else
      values[i] = Py_NewRef(bases[i]);
    passes = values[i] == nullptr ? clear_exception() : checks_pass(program_, node, values[i], symbols);
    if (passes == kHolds && it.read && node.keep >= 0) kept.put(node.keep, values[i]);
  }
  drop_all(values, 2 * n);
  return passes;
}

int Snapshot::check(const Frame& frame, Kept& kept, int64_t* symbols) {
  if (freed_) return kWalk;
  if (!changed_.empty()) {
    std::sort(changed_.begin(), changed_.end());
    for (size_t i = 0; i < changed_.size(); i++) {
      const int looked = look_again(changed_[i], symbols);
      if (looked != kHolds) return looked;
    }
    for (const int node : changed_) seen(node).changed = false;
    changed_.clear();
  }
  int passes = check_words(symbols);
  if (passes == kHolds) passes = check_tensors(symbols);
  if (passes == kHolds && !residuals_.empty()) passes = check_residuals(frame, kept, symbols);
  if (passes == kHolds) served++;
  return passes;
}
