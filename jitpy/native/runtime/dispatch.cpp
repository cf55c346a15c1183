// `Dispatcher`: the callable that a jitted function becomes. It binds arguments, finds the compiled variant whose
// guards hold, and calls it; on a miss it asks Python (`on_miss`). `jitpy/runtime/dispatch.py` has the same in pure
// Python.
//
// Threads: everything runs under the GIL, which can change hands wherever Python code runs (guards, calls). `entries`
// and `last` are only ever replaced as a whole, and a lookup holds references to what it looks at.
#include "module.h"

#include <initializer_list>
#include <structmember.h>

#include <memory>

#include "../hook_api.h"
#include "entry.h"
#include "switches.h"

namespace {

const JitpyHookApi* hook_api;  // null: no native frame hook in this process
PyObject* hook_enter;          // without `hook_api`: what is called around entries that need the hook, or null
PyObject* hook_leave;

// ---- Dispatcher ----

struct Dispatcher {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* code;
  PyObject* globals;
  PyObject* on_miss;
  PyObject* original;  // the function of `code` that it stands for; null: calls pass the closure first
  PyObject* plain;     // `code` as a function without a closure, where there is no original; made once
  PyObject* name;
  PyObject* qualname;
  PyObject* variables;  // co_varnames
  PyObject* entries;    // tuple of Entry
  Entry* last;          // the entry that served the last call, or null
  PyObject* dict;
  PyObject* weakrefs;
  int n_positional, n_positional_only, n_keyword_only, n_params, n_free;
  bool has_varargs, has_varkw;
  bool simple;  // positional parameters only
  char closure_first;
  char run_original_always;
  char closed;  // calls that no entry fits run the original
  int missed;   // such calls, less those that an entry fitted
  int review_in;        // calls that entries serve until `on_review(dispatcher)` is called; 0: it is not
  PyObject* on_review;  // callable or null
};

// More of them than hits, and a closed dispatcher does not look for entries any more.
constexpr int kMostMissed = 64;

extern PyTypeObject dispatcher_type;

bool closure_fits(PyObject* closure, Py_ssize_t n_free) {
  if (n_free == 0) return true;
  return closure != nullptr && PyTuple_Check(closure) && PyTuple_GET_SIZE(closure) == n_free;
}

// New reference to a function of `code`.
PyObject* make_function(PyObject* code, PyObject* globals, PyObject* closure) {
  const Py_ssize_t n_free = PyCode_GetNumFree(reinterpret_cast<PyCodeObject*>(code));
  if (!closure_fits(closure, n_free)) {
    PyErr_Format(PyExc_TypeError, "%U needs a closure of %zd cells", reinterpret_cast<PyCodeObject*>(code)->co_qualname,
                 n_free);
    return nullptr;
  }
  PyObject* function = PyFunction_New(code, globals);
  if (function != nullptr && n_free > 0 && PyFunction_SetClosure(function, closure) < 0) Py_CLEAR(function);
  return function;
}

PyObject* closure_of(Dispatcher* self) {
  return self->original == nullptr ? nullptr : PyFunction_GET_CLOSURE(self->original);
}

// New reference to a function of `code`, which `*made` keeps. Functions with a closure that is not the dispatcher's own
// are made anew: keeping one would keep the cells' contents alive.
PyObject* function_of(Dispatcher* self, PyObject* code, PyObject* globals, PyObject* closure, PyObject** made) {
  const bool own = globals == self->globals && (self->n_free == 0 || closure == closure_of(self));
  if (!own) return make_function(code, globals, closure);
  if (*made == nullptr) {
    PyObject* function = make_function(code, globals, closure);
    if (function == nullptr) return nullptr;
    Py_XSETREF(*made, function);
  }
  return Py_NewRef(*made);
}

PyObject* entry_function(Dispatcher* self, Entry* entry, const Bound& bound) {
  return function_of(self, entry->code, bound.globals, bound.closure, &entry->function);
}

// New reference to the entry that serves this call; null with an exception, or without one where none does.
Entry* find_entry(Dispatcher* self, const Bound& bound) {
  Entry* last = self->last;
  if (last != nullptr) {
    Py_INCREF(last);
    const int holds = entry_holds(last, bound);
    if (holds == 1) return last;
    Py_DECREF(last);
    if (holds < 0) return nullptr;
  }
  PyObject* entries = Py_NewRef(self->entries);
  Entry* found = nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
    auto* entry = reinterpret_cast<Entry*>(PyTuple_GET_ITEM(entries, i));
    if (entry == last) continue;
    const int holds = entry_holds(entry, bound);
    if (holds < 0) break;
    if (holds == 0) continue;
    Py_INCREF(found = entry);
    if (self->entries == entries) {
      Py_INCREF(entry);
      Py_XSETREF(self->last, entry);
    }
    break;
  }
  Py_DECREF(entries);
  return found;
}

// Frames that the hook met in this thread, less those of the compiler's own.
thread_local unsigned long long frames_of_compiler;
unsigned long long frames_met() { return hook_api != nullptr ? hook_api->frames() - frames_of_compiler : 0; }

// Ask `on_miss` for an entry. New reference; null with an exception, or without one where the original should run.
Entry* miss(Dispatcher* self, const Bound& bound) {
  PyObject* params = pack(bound.params, bound.n);
  if (params == nullptr) return nullptr;
  PyObject* args[] = {reinterpret_cast<PyObject*>(self), params, bound.globals,
                      bound.closure == nullptr ? Py_None : bound.closure};
  PyObject* on_miss = Py_NewRef(self->on_miss);
  const bool before = compiling;
  const unsigned long long frames = frames_met();
  compiling = true;
  PyObject* answer = PyObject_Vectorcall(on_miss, args, 4, nullptr);
  compiling = before;
  frames_of_compiler += frames_met() - frames;
  Py_DECREF(on_miss);
  Py_DECREF(params);
  if (answer == nullptr || Py_IS_TYPE(answer, &entry_type)) return reinterpret_cast<Entry*>(answer);
  if (answer != Py_None)
    PyErr_Format(PyExc_TypeError, "on_miss must return an Entry or None, not %.200s", Py_TYPE(answer)->tp_name);
  Py_DECREF(answer);
  return nullptr;
}

// Call `on_review`. False with an exception set.
bool review(Dispatcher* self) {
  if (self->on_review == nullptr) return true;
  PyObject* on_review = Py_NewRef(self->on_review);
  const bool before = compiling;
  compiling = true;
  PyObject* answer = PyObject_CallOneArg(on_review, reinterpret_cast<PyObject*>(self));
  compiling = before;
  Py_DECREF(on_review);
  Py_XDECREF(answer);
  return answer != nullptr;
}

PyObject* call_with_hook(Entry* entry, PyObject* function, const Bound& bound) {
  const JitpyHookApi* hook = hook_api;
  PyObject* leave = nullptr;
  const bool turns_on = hook != nullptr && !hook->is_active();
  const unsigned long long before = frames_met();
  if (hook != nullptr) {
    hook->enter();
  } else if (hook_enter != nullptr) {
    leave = Py_NewRef(hook_leave);
    PyObject* entered = PyObject_CallNoArgs(hook_enter);
    if (entered == nullptr) Py_CLEAR(leave);
    Py_XDECREF(entered);
    if (leave == nullptr) return nullptr;
  }
  PyObject* result = PyObject_Vectorcall(function, bound.params, bound.n, nullptr);
  if (hook != nullptr) hook->leave();
  if (turns_on) entry->frames += frames_met() - before;
  if (leave != nullptr) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject* left = PyObject_CallNoArgs(leave);
    if (left == nullptr) PyErr_WriteUnraisable(leave);
    Py_XDECREF(left);
    PyErr_Restore(type, error, traceback);
    Py_DECREF(leave);
  }
  return result;
}

PyObject* call_entry(Dispatcher* self, Entry* entry, const Bound& bound) {
  PyObject* function = entry_function(self, entry, bound);
  if (function == nullptr) return nullptr;
  entry->hits++;
  PyObject* result = entry->needs_hook ? call_with_hook(entry, function, bound)
                                       : PyObject_Vectorcall(function, bound.params, bound.n, nullptr);
  Py_DECREF(function);
  return result;
}

// Run the original on the arguments as the caller gave them.
PyObject* call_original(Dispatcher* self, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  if (self->closure_first && n == 0) {
    PyErr_Format(PyExc_TypeError, "%U needs its closure as the first argument", self->qualname);
    return nullptr;
  }
  PyObject* function =
      self->original != nullptr
          ? Py_NewRef(self->original)
          : function_of(self, self->code, self->globals, self->closure_first ? args[0] : nullptr, &self->plain);
  if (function == nullptr) return nullptr;
  PyObject* result = PyObject_Vectorcall(function, args + self->closure_first, n - self->closure_first, kwnames);
  Py_DECREF(function);
  return result;
}

// ---- binding arguments ----

// Index of the parameter that the keyword names, or -1. Argument names are interned almost always.
Py_ssize_t parameter_index(Dispatcher* self, PyObject* keyword) {
  const Py_ssize_t first = self->n_positional_only, end = self->n_positional + self->n_keyword_only;
  for (Py_ssize_t i = first; i < end; i++)
    if (PyTuple_GET_ITEM(self->variables, i) == keyword) return i;
  for (Py_ssize_t i = first; i < end; i++)
    if (PyUnicode_Compare(PyTuple_GET_ITEM(self->variables, i), keyword) == 0) return i;
  return -1;
}

// Fill `out` (n_params entries, null at first) with new references. 1; 0: the arguments do not fit; -1: an exception is
// set.
int bind(Dispatcher* self, PyObject* const* args, Py_ssize_t n, PyObject* kwnames, PyObject** out) {
  const Py_ssize_t n_positional = self->n_positional, n_named = n_positional + self->n_keyword_only;
  const Py_ssize_t n_taken = n < n_positional ? n : n_positional;
  for (Py_ssize_t i = 0; i < n_taken; i++) out[i] = Py_NewRef(args[i]);
  if (n > n_positional && !self->has_varargs) return 0;
  if (self->has_varargs) {
    PyObject* rest = PyTuple_New(n - n_taken);
    if (rest == nullptr) return -1;
    for (Py_ssize_t i = n_taken; i < n; i++) PyTuple_SET_ITEM(rest, i - n_taken, Py_NewRef(args[i]));
    out[n_named] = rest;
  }
  PyObject* keywords = nullptr;
  if (self->has_varkw && (keywords = out[self->n_params - 1] = PyDict_New()) == nullptr) return -1;
  const Py_ssize_t n_keywords = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t k = 0; k < n_keywords; k++) {
    PyObject *keyword = PyTuple_GET_ITEM(kwnames, k), *value = args[n + k];
    const Py_ssize_t i = parameter_index(self, keyword);
    if (i >= 0) {
      if (out[i] != nullptr) return 0;
      out[i] = Py_NewRef(value);
    } else {
      if (keywords == nullptr) return 0;
      if (PyDict_SetItem(keywords, keyword, value) < 0) return -1;
    }
  }
  PyObject *defaults = PyFunction_GET_DEFAULTS(self->original),
           *kwdefaults = PyFunction_GET_KW_DEFAULTS(self->original);
  const Py_ssize_t first_default = n_positional - (defaults == nullptr ? 0 : PyTuple_GET_SIZE(defaults));
  for (Py_ssize_t i = n_taken; i < n_positional; i++) {
    if (out[i] != nullptr) continue;
    if (i < first_default) return 0;
    out[i] = Py_NewRef(PyTuple_GET_ITEM(defaults, i - first_default));
  }
  for (Py_ssize_t i = n_positional; i < n_named; i++) {
    if (out[i] != nullptr) continue;
    PyObject* value =
        kwdefaults == nullptr ? nullptr : PyDict_GetItemWithError(kwdefaults, PyTuple_GET_ITEM(self->variables, i));
    if (value == nullptr) return PyErr_Occurred() ? -1 : 0;
    out[i] = Py_NewRef(value);
  }
  return 1;
}

constexpr int kFewParams = 16;

// The bound parameters of one call, released at its end.
class Params {
 public:
  explicit Params(Py_ssize_t n) : n_(n) {
    if (n > kFewParams) many_ = std::make_unique<PyObject*[]>(n);
    for (Py_ssize_t i = 0; i < n; i++) values()[i] = nullptr;
  }
  ~Params() {
    for (Py_ssize_t i = 0; i < n_; i++) Py_XDECREF(values()[i]);
  }
  PyObject** values() { return many_ ? many_.get() : few_; }

 private:
  Py_ssize_t n_;
  PyObject* few_[kFewParams];
  std::unique_ptr<PyObject*[]> many_;
};

// ---- the call ----

bool bypassed(const Dispatcher* self) {
  return turned_off() || self->run_original_always || compiling ||
         (!self->closure_first && (self->original == nullptr || PyFunction_GET_CODE(self->original) != self->code));
}

// The entry to run, a new reference; null where the original runs, or with an exception set.
Entry* choose_entry(Dispatcher* self, const Bound& bound) {
  Entry* entry = find_entry(self, bound);
  if (entry != nullptr) {
    if (self->missed > 0) self->missed--;
    if (self->review_in > 0 && --self->review_in == 0 && !review(self)) Py_CLEAR(entry);
    return entry;
  }
  if (PyErr_Occurred()) return nullptr;
  if (!self->closed) return miss(self, bound);
  if (++self->missed > kMostMissed) self->run_original_always = true;
  return nullptr;
}

PyObject* dispatch(Dispatcher* self, const Bound& bound, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  Entry* entry = choose_entry(self, bound);
  if (entry == nullptr) return PyErr_Occurred() ? nullptr : call_original(self, args, n, kwnames);
  PyObject* result = call_entry(self, entry, bound);
  Py_DECREF(entry);
  return result;
}

PyObject* dispatcher_vectorcall(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<Dispatcher*>(callable);
  const Py_ssize_t n = PyVectorcall_NARGS(nargsf);
  if (bypassed(self)) return call_original(self, args, n, kwnames);
  if (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) == 0) kwnames = nullptr;
  if (self->closure_first) {
    if (kwnames != nullptr || n != self->n_params + 1 || !closure_fits(args[0], self->n_free)) {
      PyErr_Format(PyExc_TypeError, "%U takes its closure and %d positional arguments", self->qualname, self->n_params);
      return nullptr;
    }
    return dispatch(self, {args + 1, n - 1, self->globals, args[0]}, args, n, nullptr);
  }
  if (self->simple && kwnames == nullptr && n == self->n_params)
    return dispatch(self, {args, n, self->globals, closure_of(self)}, args, n, nullptr);
  Params params(self->n_params);
  const int fits = bind(self, args, n, kwnames, params.values());
  if (fits < 0) return nullptr;
  if (fits == 0) return call_original(self, args, n, kwnames);
  return dispatch(self, {params.values(), self->n_params, self->globals, closure_of(self)}, args, n, kwnames);
}

// `lookup_frame` for a handler's own objects: `object(function, params)` is the replacement, or None.
PyObject* ask_other(PyObject* object, PyObject* function, PyObject* const* params, Py_ssize_t n) {
  PyObject* packed = pack(params, n);
  if (packed == nullptr) return nullptr;
  PyObject* answer = PyObject_CallFunctionObjArgs(object, function, packed, nullptr);
  Py_DECREF(packed);
  if (answer == Py_None) Py_CLEAR(answer);
  return answer;
}

// The code that runs instead of a frame of `function` (all arguments borrowed); see hook_api.h.
PyObject* lookup_frame(PyObject* object, PyObject* function, PyObject* const* params, Py_ssize_t n) {
  if (!Py_IS_TYPE(object, &dispatcher_type)) return ask_other(object, function, params, n);
  auto* self = reinterpret_cast<Dispatcher*>(object);
  if (turned_off() || self->run_original_always || compiling) return nullptr;
  const Bound bound{params, n, PyFunction_GET_GLOBALS(function), PyFunction_GET_CLOSURE(function)};
  if (n != self->n_params || !closure_fits(bound.closure, self->n_free)) return nullptr;
  Entry* entry = choose_entry(self, bound);
  if (entry == nullptr) return nullptr;
  PyObject* replacement = entry_function(self, entry, bound);
  if (replacement != nullptr) entry->hits++;
  Py_DECREF(entry);
  return replacement;
}

// ---- methods of Dispatcher ----

PyObject* dispatcher_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"code", "globals", "name", "qualname", "on_miss", "original", nullptr};
  PyObject *code, *globals, *name, *qualname, *on_miss, *original;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!UUOO:Dispatcher", const_cast<char**>(names), &PyCode_Type, &code,
                                   &PyDict_Type, &globals, &name, &qualname, &on_miss, &original))
    return nullptr;
  if (original == Py_None) original = nullptr;
  auto* code_object = reinterpret_cast<PyCodeObject*>(code);
  if (!PyCallable_Check(on_miss) ||
      (original != nullptr && (!PyFunction_Check(original) || PyFunction_GET_CODE(original) != code))) {
    PyErr_SetString(PyExc_TypeError, "Dispatcher: an argument has the wrong type");
    return nullptr;
  }
  auto* self = reinterpret_cast<Dispatcher*>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->vectorcall = dispatcher_vectorcall;
  self->code = Py_NewRef(code);
  self->globals = Py_NewRef(globals);
  self->on_miss = Py_NewRef(on_miss);
  self->original = Py_XNewRef(original);
  self->name = Py_NewRef(name);
  self->qualname = Py_NewRef(qualname);
  self->variables = PyCode_GetVarnames(code_object);
  self->entries = PyTuple_New(0);
  self->n_positional = code_object->co_argcount;
  self->n_positional_only = code_object->co_posonlyargcount;
  self->n_keyword_only = code_object->co_kwonlyargcount;
  self->n_free = static_cast<int>(PyCode_GetNumFree(code_object));
  self->has_varargs = code_object->co_flags & CO_VARARGS;
  self->has_varkw = code_object->co_flags & CO_VARKEYWORDS;
  self->n_params = self->n_positional + self->n_keyword_only + self->has_varargs + self->has_varkw;
  self->simple = self->n_params == self->n_positional;
  self->closure_first = original == nullptr;
  if (self->variables == nullptr || self->entries == nullptr || (self->dict = PyDict_New()) == nullptr ||
      PyDict_SetItemString(self->dict, "__name__", name) < 0 ||
      PyDict_SetItemString(self->dict, "__qualname__", qualname) < 0) {
    Py_DECREF(self);
    return nullptr;
  }
  return reinterpret_cast<PyObject*>(self);
}

int dispatcher_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  for (PyObject* held :
       {self->code, self->globals, self->on_miss, self->original, self->plain, self->variables, self->entries,
        reinterpret_cast<PyObject*>(self->last), self->dict, self->on_review})
    Py_VISIT(held);
  return 0;
}

// A cleared dispatcher may still be called by somebody's finalizer: what calls and methods read stays valid.
int dispatcher_clear(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  self->run_original_always = true;
  Py_CLEAR(self->plain);
  Py_CLEAR(self->last);
  Py_XSETREF(self->entries, PyTuple_New(0));
  Py_CLEAR(self->original);
  Py_CLEAR(self->on_miss);
  Py_CLEAR(self->on_review);
  Py_CLEAR(self->dict);
  return 0;
}

void dispatcher_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs != nullptr) PyObject_ClearWeakRefs(object);
  dispatcher_clear(object);
  Py_CLEAR(self->entries);
  Py_CLEAR(self->code);
  Py_CLEAR(self->globals);
  Py_CLEAR(self->name);
  Py_CLEAR(self->qualname);
  Py_CLEAR(self->variables);
  Py_TYPE(object)->tp_free(object);
}

PyObject* dispatcher_descr_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
  return PyMethod_New(self, instance);
}

PyObject* dispatcher_repr(PyObject* object) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  const Py_ssize_t n = self->entries == nullptr ? 0 : PyTuple_GET_SIZE(self->entries);
  return PyUnicode_FromFormat("<jitted function %U, %zd variant%s>", self->qualname, n, n == 1 ? "" : "s");
}

// Attributes that the dispatcher lacks are the original's (__defaults__, __annotations__, ...).
PyObject* dispatcher_getattro(PyObject* object, PyObject* name) {
  PyObject* found = PyObject_GenericGetAttr(object, name);
  PyObject* original = reinterpret_cast<Dispatcher*>(object)->original;
  if (found != nullptr || original == nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return PyObject_GetAttr(original, name);
}

// Takes over a tuple of entries, null with an exception set; `last` is borrowed, or null.
bool replace_entries(Dispatcher* self, PyObject* entries, Entry* last) {
  if (entries == nullptr) return false;
  PyObject *before = self->entries, *former = reinterpret_cast<PyObject*>(self->last);
  self->entries = entries;
  Py_XINCREF(self->last = last);
  Py_DECREF(before);
  Py_XDECREF(former);
  return true;
}

PyObject* dispatcher_add_entry(PyObject* object, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"guard", "code", "needs_hook", "payload", nullptr};
  auto* self = reinterpret_cast<Dispatcher*>(object);
  PyObject *guard, *code, *payload = Py_None;
  int needs_hook = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!|pO:add_entry", const_cast<char**>(names), &guard, &PyCode_Type,
                                   &code, &needs_hook, &payload))
    return nullptr;
  auto* code_object = reinterpret_cast<PyCodeObject*>(code);
  const Py_ssize_t n_free = PyCode_GetNumFree(code_object);
  if (code_object->co_argcount != self->n_params || code_object->co_kwonlyargcount != 0 ||
      (code_object->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) || (n_free != 0 && n_free != self->n_free)) {
    PyErr_Format(PyExc_ValueError, "%U: compiled code must take %d positional parameters and no or %d free variables",
                 self->qualname, self->n_params, self->n_free);
    return nullptr;
  }
  Entry* entry = make_entry(guard, code, needs_hook, payload);
  if (entry == nullptr) return nullptr;
  PyObject* added = PyTuple_Pack(1, entry);
  // Making the entry ran Python code: the entries are read only now.
  if (!replace_entries(self, added == nullptr ? nullptr : PySequence_Concat(self->entries, added), entry))
    Py_CLEAR(entry);
  Py_XDECREF(added);
  return reinterpret_cast<PyObject*>(entry);
}

PyObject* dispatcher_remove(PyObject* object, PyObject* entry) {
  auto* self = reinterpret_cast<Dispatcher*>(object);
  const Py_ssize_t i = PySequence_Index(self->entries, entry);  // ValueError where it is not there
  if (i < 0) return nullptr;
  PyObject *before = PyTuple_GetSlice(self->entries, 0, i),
           *behind = PyTuple_GetSlice(self->entries, i + 1, PyTuple_GET_SIZE(self->entries));
  PyObject* entries = before == nullptr || behind == nullptr ? nullptr : PySequence_Concat(before, behind);
  Py_XDECREF(before);
  Py_XDECREF(behind);
  return replace_entries(self, entries, nullptr) ? Py_NewRef(Py_None) : nullptr;
}

PyObject* dispatcher_clear_entries(PyObject* object, PyObject*) {
  return replace_entries(reinterpret_cast<Dispatcher*>(object), PyTuple_New(0), nullptr) ? Py_NewRef(Py_None) : nullptr;
}

// Pickled by name, as functions are; one that no name leads to is made anew.
PyObject* dispatcher_reduce(PyObject* object, PyObject*) {
  PyObject* python_half = PyImport_ImportModule("jitpy.runtime.dispatch");
  PyObject* result =
      python_half == nullptr ? nullptr : PyObject_CallMethod(python_half, "pickled_form", "O", object);
  Py_XDECREF(python_half);
  return result;
}

PyObject* dispatcher_copy(PyObject* object, PyObject*) { return Py_NewRef(object); }

PyObject* dispatcher_get_entries(PyObject* object, void*) {
  return PySequence_List(reinterpret_cast<Dispatcher*>(object)->entries);
}

PyMethodDef dispatcher_methods[] = {
    {"add_entry", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dispatcher_add_entry)),
     METH_VARARGS | METH_KEYWORDS, "add_entry(guard, code, needs_hook=False, payload=None) -> Entry"},
    {"remove", dispatcher_remove, METH_O, "remove(entry): ValueError where it is not there"},
    {"clear", dispatcher_clear_entries, METH_NOARGS, "clear(): remove all entries"},
    {"__reduce__", dispatcher_reduce, METH_NOARGS, nullptr},
    {"__copy__", dispatcher_copy, METH_NOARGS, nullptr},
    {"__deepcopy__", dispatcher_copy, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef dispatcher_members[] = {
    {"code", T_OBJECT, offsetof(Dispatcher, code), READONLY, "the original's code object"},
    {"globals", T_OBJECT, offsetof(Dispatcher, globals), READONLY, "the original's globals"},
    {"closure_first", T_BOOL, offsetof(Dispatcher, closure_first), READONLY,
     "whether calls pass the closure as first argument"},
    {"original", T_OBJECT, offsetof(Dispatcher, original), READONLY, "what runs eagerly, or None"},
    {"on_miss", T_OBJECT, offsetof(Dispatcher, on_miss), READONLY,
     "on_miss(dispatcher, params, globals, closure) -> Entry | None"},
    {"run_original_always", T_BOOL, offsetof(Dispatcher, run_original_always), 0, "True: run eagerly from now on"},
    {"closed", T_BOOL, offsetof(Dispatcher, closed), 0, "True: what no entry fits runs eagerly"},
    {"review_in", T_INT, offsetof(Dispatcher, review_in), 0,
     "calls that entries serve until on_review(dispatcher) is called; 0: it is not"},
    {"on_review", T_OBJECT, offsetof(Dispatcher, on_review), 0, "on_review(dispatcher), or None"},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef dispatcher_getset[] = {
    {"entries", dispatcher_get_entries, nullptr, "list of the entries, oldest first", nullptr},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject make_dispatcher_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "_jitpy_runtime.Dispatcher";
  type.tp_basicsize = sizeof(Dispatcher);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_vectorcall_offset = offsetof(Dispatcher, vectorcall);
  type.tp_dictoffset = offsetof(Dispatcher, dict);
  type.tp_weaklistoffset = offsetof(Dispatcher, weakrefs);
  type.tp_call = PyVectorcall_Call;
  type.tp_new = dispatcher_new;
  type.tp_dealloc = dispatcher_dealloc;
  type.tp_traverse = dispatcher_traverse;
  type.tp_clear = dispatcher_clear;
  type.tp_descr_get = dispatcher_descr_get;
  type.tp_getattro = dispatcher_getattro;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_repr = dispatcher_repr;
  type.tp_methods = dispatcher_methods;
  type.tp_members = dispatcher_members;
  type.tp_getset = dispatcher_getset;
  return type;
}

PyTypeObject dispatcher_type = make_dispatcher_type();

// ---- module functions ----

PyObject* set_hook_api(PyObject*, PyObject* capsule) {
  if (capsule == Py_None) {
    if (hook_api != nullptr) hook_api->set_lookup(nullptr);
    hook_api = nullptr;
    Py_RETURN_NONE;
  }
  auto* api = static_cast<const JitpyHookApi*>(PyCapsule_GetPointer(capsule, JITPY_HOOK_CAPSULE));
  if (api == nullptr) return nullptr;
  if (api->version != JITPY_HOOK_API_VERSION) {
    PyErr_Format(PyExc_ValueError, "the frame hook has interface %d, not %d", api->version, JITPY_HOOK_API_VERSION);
    return nullptr;
  }
  hook_api = api;
  api->set_lookup(lookup_frame);
  Py_RETURN_NONE;
}

PyObject* set_hook_functions(PyObject*, PyObject* args) {
  PyObject *enter, *leave;
  if (!PyArg_ParseTuple(args, "OO:set_hook_functions", &enter, &leave)) return nullptr;
  Py_XSETREF(hook_enter, Py_NewRef(enter));
  Py_XSETREF(hook_leave, Py_NewRef(leave));
  Py_RETURN_NONE;
}

PyMethodDef module_functions[] = {
    {"set_hook_api", set_hook_api, METH_O,
     "set_hook_api(capsule or None): the frame hook that serves `needs_hook` entries"},
    {"set_hook_functions", set_hook_functions, METH_VARARGS,
     "set_hook_functions(enter, leave): called around `needs_hook` entries where there is no native frame hook"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int init_dispatch(PyObject* module) {
  if (PyModule_AddFunctions(module, module_functions) < 0) return -1;
  if (PyType_Ready(&entry_type) < 0 || PyType_Ready(&dispatcher_type) < 0) return -1;
  if (PyModule_AddObjectRef(module, "Entry", reinterpret_cast<PyObject*>(&entry_type)) < 0) return -1;
  return PyModule_AddObjectRef(module, "Dispatcher", reinterpret_cast<PyObject*>(&dispatcher_type));
}
