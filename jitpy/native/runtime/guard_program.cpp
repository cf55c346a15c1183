#include "guard_program.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace {

constexpr const char* kStepNames[] = {"local", "closure", "closure_cell", "globals", "const", "weak_const", "attr",
                                      "dict",  "item",    "index",        "type",    "slot",  "cell",
                                      "index_by"};
constexpr const char* kCheckNames[] = {"type",   "id",    "weak_id", "weak_type", "eq",  "len",      "keys",
                                       "haskey", "nokey", "tensor",  "int", "function", "empty"};
constexpr const char* kFinalNames[] = {"same", "distinct", "overlap", "relation", "python"};

int name_index(PyObject* name, const char* const* names, int n, const char* what) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return -1;
  for (int i = 0; i < n; i++)
    if (std::strcmp(text, names[i]) == 0) return i;
  PyErr_Format(PyExc_ValueError, "unknown %s '%s'", what, text);
  return -1;
}

// ("bind", slot, low, high) | ("same", slot) | ("store", slot) | int
bool parse_dim(PyObject* entry, DimCheck& dim) {
  dim = {DimCheck::kExact, 0, 0, INT64_MIN, INT64_MAX};
  if (PyLong_Check(entry)) {
    dim.value = PyLong_AsLongLong(entry);
    return !(dim.value == -1 && PyErr_Occurred());
  }
  const char* kind;
  long long low = INT64_MIN, high = INT64_MAX;
  if (!PyArg_ParseTuple(entry, "si|LL", &kind, &dim.slot, &low, &high)) return false;
  dim.kind = kind[0] == 'b' ? DimCheck::kBind : kind[1] == 'a' ? DimCheck::kSame : DimCheck::kStore;
  dim.low = low;
  dim.high = high;
  return true;
}

// (dtype, device, requires_grad, dispatch_keys, is_inference, shape entries, stride entries)
std::unique_ptr<TensorCheck> parse_tensor(PyObject* spec) {
  PyObject *dtype, *device, *keys, *shape, *stride;
  int requires_grad, is_inference;
  if (!PyArg_ParseTuple(spec, "OOpOpO!O!", &dtype, &device, &requires_grad, &keys, &is_inference, &PyTuple_Type, &shape,
                        &PyTuple_Type, &stride))
    return nullptr;
  auto check = std::make_unique<TensorCheck>();
  check->requires_grad = requires_grad;
  check->is_inference = is_inference;
  check->dispatch_keys = PyLong_AsUnsignedLongLongMask(keys);
  if (PyErr_Occurred()) return nullptr;
  if (parse_dtype(dtype, &check->dtype) < 0) return nullptr;
  if (parse_device(device, &check->device_type, &check->device_index) < 0) return nullptr;
  check->all_exact = true;
  for (PyObject* entries : {shape, stride}) {
    auto& numbers = entries == shape ? check->sizes : check->strides;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
      DimCheck dim;
      if (!parse_dim(PyTuple_GET_ITEM(entries, i), dim)) return nullptr;
      check->all_exact = check->all_exact && dim.kind == DimCheck::kExact;
      numbers.push_back(dim.value);
      check->dims.push_back(dim);
    }
  }
  if (check->sizes.size() != check->strides.size()) {
    PyErr_SetString(PyExc_ValueError, "a tensor guard needs as many strides as sizes");
    return nullptr;
  }
  return check;
}

// (kind, argument): the argument as the kinds below read it.
bool parse_check(PyObject* entry, Check& check) {
  PyObject *name, *arg;
  if (!PyArg_ParseTuple(entry, "OO", &name, &arg)) return false;
  const int kind = name_index(name, kCheckNames, std::size(kCheckNames), "guard kind");
  if (kind < 0) return false;
  check = {static_cast<CheckKind>(kind), 0, false, INT64_MIN, INT64_MAX, Ref(Py_XNewRef(arg)), nullptr};
  switch (check.kind) {
    case CheckKind::kLen:
      check.number = PyLong_AsSsize_t(arg);
      return !PyErr_Occurred();
    case CheckKind::kKeys:
    case CheckKind::kFunction:
      if (PyTuple_Check(arg) && (check.kind == CheckKind::kKeys || PyTuple_GET_SIZE(arg) == 4)) return true;
      PyErr_SetString(PyExc_TypeError, "this guard takes a tuple");
      return false;
    case CheckKind::kWeakId:
    case CheckKind::kWeakType:
      if (PyWeakref_Check(arg)) return true;
      PyErr_SetString(PyExc_TypeError, "a weak guard takes a weak reference");
      return false;
    case CheckKind::kHasKey:
    case CheckKind::kNoKey:
      check.number = PyObject_Hash(arg);
      return check.number != -1;
    case CheckKind::kInt: {  // (slot, bind, low, high)
      int bind;
      long long low, high;
      if (!PyArg_ParseTuple(arg, "npLL", &check.number, &bind, &low, &high)) return false;
      check.bind = bind;
      check.low = low;
      check.high = high;
      return true;
    }
    case CheckKind::kTensor: {  // (class, spec)
      PyObject *cls, *spec;
      if (!PyArg_ParseTuple(arg, "OO!", &cls, &PyTuple_Type, &spec)) return false;
      if (!is_tensor_class(cls)) {
        PyErr_SetString(PyExc_TypeError, "a tensor guard's class must derive from torch.Tensor");
        return false;
      }
      check.object = Ref(Py_XNewRef(cls));
      check.tensor = parse_tensor(spec);
      return check.tensor != nullptr;
    }
    default:
      return true;
  }
}

constexpr const char* kSizeOps[] = {"const",   "symbol",   "add", "mul", "power", "invert", "floor",
                                    "ceiling", "floordiv", "mod", "min", "max",   "abs",    "eq",
                                    "ne",      "lt",       "le",  "and", "or",    "not"};

// ((op, arg), ...)
bool parse_size_program(PyObject* instructions, SizeProgram& out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(instructions); i++) {
    PyObject* op;
    long long arg;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(instructions, i), "OL", &op, &arg)) return false;
    const int code = name_index(op, kSizeOps, std::size(kSizeOps), "size operation");
    if (code < 0) return false;
    out.push_back({static_cast<SizeInstruction::Op>(code), arg});
  }
  return true;
}

// (step, argument, depth, end, keep, (checks...))
bool parse_node(PyObject* entry, Program& program) {
  PyObject *name, *arg, *checks;
  Node node{};
  if (!PyArg_ParseTuple(entry, "OOiiiO!", &name, &arg, &node.depth, &node.end, &node.keep, &PyTuple_Type, &checks))
    return false;
  const int step = name_index(name, kStepNames, std::size(kStepNames), "access step");
  if (step < 0) return false;
  node.step = static_cast<Step>(step);
  node.arg = Ref(Py_XNewRef(arg));
  const bool indexed = node.step == Step::kIndex || node.step <= Step::kClosureCell;
  if (indexed) {
    node.index = PyLong_AsSsize_t(arg);
    if (node.index == -1 && PyErr_Occurred()) return false;
  }
  if (node.step == Step::kIndexBy) {  // (keep, instructions)
    PyObject* instructions;
    Choice choice;
    if (!PyArg_ParseTuple(arg, "iO!", &choice.keep, &PyTuple_Type, &instructions)) return false;
    if (!parse_size_program(instructions, choice.place)) return false;
    node.index = static_cast<Py_ssize_t>(program.choices.size());
    program.choices.push_back(std::move(choice));
  }
  if (node.step == Step::kItem && (node.hash = PyObject_Hash(arg)) == -1) return false;
  if (node.step == Step::kWeakConst && !PyWeakref_Check(arg)) {
    PyErr_SetString(PyExc_TypeError, "a weak_const step takes a weak reference");
    return false;
  }
  if (node.step == Step::kSlot && Py_TYPE(arg)->tp_descr_get == nullptr) {
    PyErr_SetString(PyExc_TypeError, "a slot step takes a descriptor");
    return false;
  }
  if (node.step == Step::kAttr && !PyUnicode_Check(arg)) {
    PyErr_SetString(PyExc_TypeError, "an attr step takes a name");
    return false;
  }
  node.checks_begin = static_cast<int>(program.checks.size());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(checks); i++) {
    Check check;
    if (!parse_check(PyTuple_GET_ITEM(checks, i), check)) return false;
    program.checks.push_back(std::move(check));
  }
  node.checks_end = static_cast<int>(program.checks.size());
  program.depths = std::max(program.depths, node.depth + 1);
  program.keeps = std::max(program.keeps, node.keep + 1);
  program.runs_python |= node.step == Step::kAttr || node.step == Step::kSlot;
  program.nodes.push_back(std::move(node));
  return true;
}

bool parse_ints(PyObject* tuple, std::vector<int>& out) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const long number = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
    if (number == -1 && PyErr_Occurred()) return false;
    out.push_back(static_cast<int>(number));
  }
  return true;
}

// (kind, (keeps), (symbol slots), callable or None, ((op, arg), ...))
bool parse_final(PyObject* entry, Program& program) {
  PyObject *name, *keeps, *slots, *callable, *instructions;
  if (!PyArg_ParseTuple(entry, "OO!O!OO!", &name, &PyTuple_Type, &keeps, &PyTuple_Type, &slots, &callable,
                        &PyTuple_Type, &instructions))
    return false;
  const int kind = name_index(name, kFinalNames, std::size(kFinalNames), "guard kind");
  if (kind < 0) return false;
  FinalCheck check;
  check.kind = static_cast<FinalKind>(kind);
  check.object = Ref(Py_XNewRef(callable));
  if (!parse_ints(keeps, check.keeps) || !parse_ints(slots, check.symbols)) return false;
  if (!parse_size_program(instructions, check.program)) return false;
  program.runs_python |= check.kind == FinalKind::kPython;
  program.finals.push_back(std::move(check));
  return true;
}

// (grad, inference, default dtype, ((device, enabled, dtype)...), deterministic, default device, function modes,
// dispatch modes, forward-mode gradients, whether classes are asked for __torch_function__)
bool parse_state(PyObject* spec, Program& program) {
  PyObject *dtype, *autocast, *default_device;
  int grad, inference, deterministic, forward_ad, asks_classes;
  long long function_modes, dispatch_modes;
  if (!PyArg_ParseTuple(spec, "ppOO!pOLLpp", &grad, &inference, &dtype, &PyTuple_Type, &autocast, &deterministic,
                        &default_device, &function_modes, &dispatch_modes, &forward_ad, &asks_classes))
    return false;
  StateCheck check;
  check.grad_enabled = grad;
  check.inference_mode = inference;
  check.deterministic = deterministic;
  check.function_modes = function_modes;
  check.forward_ad = forward_ad;
  check.asks_classes = asks_classes;
  check.dispatch_modes = dispatch_modes;
  if (parse_dtype(dtype, &check.default_dtype) < 0) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(autocast); i++) {
    const char* name;
    int enabled;
    PyObject* found;
    StateCheck::Autocast entry;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(autocast, i), "spO", &name, &enabled, &found)) return false;
    if (parse_device_type(name, &entry.device_type) < 0 || parse_dtype(found, &entry.dtype) < 0) return false;
    entry.enabled = enabled;
    check.autocast.push_back(entry);
  }
  if (default_device != Py_None && !PyUnicode_Check(default_device)) {
    PyErr_SetString(PyExc_TypeError, "the default device is None or a str");
    return false;
  }
  program.states.emplace_back(std::move(check), Ref(Py_XNewRef(default_device)));
  return true;
}

// (class, ((name, found) | (name, weak reference, True) | (name,) | (name, owner, weak, True), ...), MRO); the classes may
// be weak references
bool parse_class(PyObject* entry, Program& program) {
  PyObject *cls, *names, *mro;
  if (!PyArg_ParseTuple(entry, "OO!O!", &cls, &PyTuple_Type, &names, &PyTuple_Type, &mro)) return false;
  if (!PyType_Check(cls) && !PyWeakref_Check(cls)) {
    PyErr_SetString(PyExc_TypeError, "a class guard takes a class");
    return false;
  }
  ClassCheck check;
  check.cls = Ref(Py_XNewRef(cls));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
    PyObject *name, *found = nullptr;
    int weak = 0, held = 0;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(names, i), "U|Opp", &name, &found, &weak, &held)) return false;
    if (weak && !PyWeakref_Check(found)) {
      PyErr_SetString(PyExc_TypeError, "what a class guard holds weakly is given as a weak reference");
      return false;
    }
    if (held && !weak && !PyType_Check(found)) {
      PyErr_SetString(PyExc_TypeError, "what holds a class's attribute is a class");
      return false;
    }
    PyObject* interned = Py_NewRef(name);
    PyUnicode_InternInPlace(&interned);
    check.names.push_back({Ref(interned), Ref(Py_XNewRef(found)), weak != 0, held != 0});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(mro); i++) {
    PyObject* base = PyTuple_GET_ITEM(mro, i);
    if (!PyType_Check(base) && !PyWeakref_Check(base)) {
      PyErr_SetString(PyExc_TypeError, "a class guard's MRO holds classes");
      return false;
    }
    check.mro.push_back(Ref(Py_XNewRef(base)));
  }
  program.classes.push_back(std::move(check));
  return true;
}

// Whether the program leaves exactly one value, and takes none from an empty stack.
bool balanced(const SizeProgram& program) {
  using Op = SizeInstruction;
  int height = 0;
  for (const auto& instruction : program) {
    switch (instruction.op) {
      case Op::kConst:
      case Op::kSymbol:
        height++;
        break;
      case Op::kPower:
      case Op::kInvert:
      case Op::kFloor:
      case Op::kCeiling:
      case Op::kAbs:
      case Op::kNot:
        if (height < 1) return false;
        break;
      default:
        if (height-- < 2) return false;
    }
  }
  return height == 1 || program.empty();
}

bool valid(const SizeProgram& instructions, const Program& program) {
  for (const auto& instruction : instructions)
    if (instruction.op == SizeInstruction::kSymbol && (instruction.arg < 0 || instruction.arg >= program.symbols))
      return false;
  return balanced(instructions);
}

bool valid(const Program& program) {
  for (const FinalCheck& check : program.finals) {
    for (const int keep : check.keeps)
      if (keep < 0 || keep >= program.keeps) return false;
    for (const int slot : check.symbols)
      if (slot < 0 || slot >= program.symbols) return false;
    if (!valid(check.program, program)) return false;
  }
  for (const Choice& choice : program.choices)
    if (choice.keep < 0 || choice.keep >= program.keeps || !valid(choice.place, program)) return false;
  int depth = -1;
  for (const Node& node : program.nodes) {
    if (node.depth < 0 || node.depth > depth + 1) return false;
    if ((node.depth == 0) != (node.step <= Step::kWeakConst || node.step == Step::kIndexBy)) return false;
    if (node.step <= Step::kClosureCell && node.index < 0) return false;
    depth = node.depth;
  }
  for (const Check& check : program.checks) {
    if (check.kind == CheckKind::kInt && (check.number < 0 || check.number >= program.symbols)) return false;
    if (check.tensor == nullptr) continue;
    for (const auto& dim : check.tensor->dims)
      if (dim.slot < 0 || (dim.kind != DimCheck::kExact && dim.slot >= program.symbols)) return false;
  }
  return true;
}

bool parse_all(PyObject* tuple, Program& program, bool (*parse)(PyObject*, Program&)) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    if (!parse(PyTuple_GET_ITEM(tuple, i), program)) return false;
  return true;
}

}  // namespace

std::unique_ptr<Program> parse_program(PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"nodes", "finals", "states", "attention", "classes", "symbols", nullptr};
  PyObject *nodes, *finals, *states, *classes;
  AttentionCheck attention;
  int symbols;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!(bb)O!i", const_cast<char**>(names), &PyTuple_Type, &nodes,
                                   &PyTuple_Type, &finals, &PyTuple_Type, &states, &attention.asked,
                                   &attention.allowed, &PyTuple_Type, &classes, &symbols))
    return nullptr;
  auto program = std::make_unique<Program>();
  program->symbols = symbols;
  program->attention = attention;
  if (!parse_all(nodes, *program, parse_node) || !parse_all(finals, *program, parse_final)) return nullptr;
  if (!parse_all(classes, *program, parse_class) || !parse_all(states, *program, parse_state)) return nullptr;
  if (!valid(*program)) {
    PyErr_SetString(PyExc_ValueError, "the guard program mentions a slot that nothing fills");
    return nullptr;
  }
  program->keep_nodes.assign(program->keeps, -1);
  for (size_t i = 0; i < program->nodes.size(); i++)
    if (program->nodes[i].keep >= 0) program->keep_nodes[program->nodes[i].keep] = static_cast<int>(i);
  return program;
}
