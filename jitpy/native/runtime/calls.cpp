// CallStep: eager operators through torch's dispatcher, and any other callable through Python.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include "operator_values.h"
#include "steps.h"

namespace jitpy {

struct OperatorStack {
  torch::jit::Stack values;
};

void FreeOperatorStack::operator()(OperatorStack* stack) const { delete stack; }

Template::Template(PyObject* value, const PlanReader& reader) {
  if (!reader.has_refs(value)) {
    kind_ = Kind::constant;
    constant_ = reader.keep(value);
  } else if (reader.is_slot_ref(value)) {
    kind_ = Kind::slot;
    index_ = reader.slot_attribute(value, "slot");
  } else if (reader.is_size_ref(value)) {
    kind_ = Kind::size;
    index_ = reader.size(value).entry;
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    kind_ = PyTuple_CheckExact(value) ? Kind::tuple : Kind::list;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      children_.emplace_back(PySequence_Fast_GET_ITEM(value, i), reader);
  } else if (PyDict_CheckExact(value)) {
    kind_ = Kind::dict;
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) {
      keys_.push_back(reader.keep(key));
      children_.emplace_back(item, reader);
    }
  } else {  // has_refs looks into nothing else
    kind_ = Kind::slice;
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) children_.emplace_back(part, reader);
  }
}

Ref Template::build(const Frame& frame) const {
  switch (kind_) {
    case Kind::constant:
      Py_INCREF(constant_);
      return Ref(constant_);
    case Kind::slot:
      return checked(frame.slots[index_].to_python());
    case Kind::size:
      return checked(PyLong_FromLongLong(frame.sizes[index_]));
    case Kind::tuple: {
      Ref result = checked(PyTuple_New(children_.size()));
      for (size_t i = 0; i < children_.size(); ++i)
        PyTuple_SET_ITEM(result.get(), i, children_[i].build(frame).release());
      return result;
    }
    case Kind::list: {
      Ref result = checked(PyList_New(children_.size()));
      for (size_t i = 0; i < children_.size(); ++i)
        PyList_SET_ITEM(result.get(), i, children_[i].build(frame).release());
      return result;
    }
    case Kind::dict: {
      Ref result = checked(PyDict_New());
      for (size_t i = 0; i < children_.size(); ++i) {
        Ref item = children_[i].build(frame);
        if (PyDict_SetItem(result.get(), keys_[i], item.get()) < 0) throw_python_error();
      }
      return result;
    }
    case Kind::slice: {
      Ref start = children_[0].build(frame), stop = children_[1].build(frame), step = children_[2].build(frame);
      return checked(PySlice_New(start.get(), stop.get(), step.get()));
    }
  }
  return Ref();
}

namespace {

// Where results go, and under which grad mode the call runs.
struct CallTarget {
  std::vector<int32_t> slots;
  bool sequence = false;
  std::optional<bool> grad;
  std::string name;

  CallTarget(PyObject* step, const PlanReader& reader) {
    slots = reader.slots(attribute(step, "slots").get());
    int multiple = PyObject_IsTrue(attribute(step, "multiple").get());
    if (multiple < 0) throw_python_error();
    sequence = multiple != 0 || slots.size() != 1;
    Ref mode = attribute(step, "grad");
    if (mode.get() != Py_None) grad = mode.get() == Py_True;
    Ref function = attribute(step, "function");
    Ref text(PyObject_GetAttrString(function.get(), "__name__"));
    if (!text) {
      PyErr_Clear();
      text = checked(PyObject_Repr(function.get()));
    }
    Ref string = checked(PyObject_Str(text.get()));
    const char* characters = PyUnicode_AsUTF8(string.get());
    if (characters == nullptr) throw_python_error();
    name = characters;
  }

  void check_count(size_t found) const {
    TORCH_CHECK(found >= slots.size(), name, " returned ", found, " values where the program takes ", slots.size());
  }
};

void store(Slot& slot, c10::IValue&& value) {
  if (value.isTensor()) {
    at::Tensor tensor = std::move(value).toTensor();
    if (tensor.defined()) {
      slot.set(std::move(tensor));
    } else {
      Py_INCREF(Py_None);
      slot.set_object(Py_None);
    }
  } else {
    slot.set_object(checked(to_python(std::move(value))).release());
  }
}

// One dynamic argument of an operator.
class Argument {
 public:
  Argument(size_t position, PyObject* value, const c10::Argument& schema, const PlanReader& reader)
      : position_(position), type_(schema.real_type()), length_(schema.N()), template_(value, reader) {
    c10::TypePtr type = type_;
    if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    if (reader.is_slot_ref(value) && type->kind() == c10::TypeKind::TensorType) {
      way_ = Way::tensor;
      index_ = reader.slot_attribute(value, "slot");
    } else if (reader.is_size_ref(value) && is_int(*type)) {
      way_ = Way::size;
      index_ = reader.size(value).entry;
    } else if (auto list = type->cast<c10::ListType>();
               list && is_int(*list->getElementType()) && all_sizes(value, reader)) {
      way_ = Way::sizes;
      sizes_ = reader.sizes(value);
    } else if (list && list->getElementType()->kind() == c10::TypeKind::TensorType && all_slots(value, reader)) {
      way_ = Way::tensors;
      for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
        slots_.push_back(reader.slot_attribute(PySequence_Fast_GET_ITEM(value, i), "slot"));
    }
  }

  size_t position() const { return position_; }

  c10::IValue value(const Frame& frame) const {
    switch (way_) {
      case Way::tensor:
        if (frame.slots[index_].tensor.defined()) return frame.slots[index_].tensor;
        break;  // a number, or None
      case Way::size:
        return frame.sizes[index_];
      case Way::sizes: {
        c10::List<int64_t> list;
        list.reserve(sizes_.size());
        for (const Size& size : sizes_) list.push_back(size.get(frame.sizes));
        return list;
      }
      case Way::tensors: {
        c10::List<at::Tensor> list;
        list.reserve(slots_.size());
        for (int32_t slot : slots_) {
          if (!frame.slots[slot].tensor.defined()) return convert(frame);
          list.push_back(frame.slots[slot].tensor);
        }
        return list;
      }
      case Way::python:
        break;
    }
    return convert(frame);
  }

 private:
  enum class Way { python, tensor, size, sizes, tensors };

  static bool is_int(const c10::Type& type) {
    return type.kind() == c10::TypeKind::IntType || type.kind() == c10::TypeKind::SymIntType;
  }

  static bool is_sequence(PyObject* value) { return PyTuple_CheckExact(value) || PyList_CheckExact(value); }

  static bool all_sizes(PyObject* value, const PlanReader& reader) {
    if (!is_sequence(value)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      PyObject* item = PySequence_Fast_GET_ITEM(value, i);
      if (!PyLong_CheckExact(item) && !reader.is_size_ref(item)) return false;
    }
    return true;
  }

  static bool all_slots(PyObject* value, const PlanReader& reader) {
    if (!is_sequence(value)) return false;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      if (!reader.is_slot_ref(PySequence_Fast_GET_ITEM(value, i))) return false;
    return true;
  }

  // The general way: as a Python argument, converted as torch converts arguments of torch.ops calls.
  c10::IValue convert(const Frame& frame) const {
    Ref object = template_.build(frame);
    return to_ivalue(object.get(), type_, length_);
  }

  Way way_ = Way::python;
  size_t position_;
  c10::TypePtr type_;
  std::optional<int32_t> length_;
  Template template_;
  int32_t index_ = 0;
  Sizes sizes_;
  std::vector<int32_t> slots_;
};

class OperatorCall final : public Step {
 public:
  OperatorCall(c10::OperatorHandle handle, CallTarget target)
      : handle_(std::move(handle)),
        target_(std::move(target)),
        numbers_as_tensors_(takes_numbers_as_tensors(name_without_namespace(handle_))),
        callers_keys_(handle_.operator_name().name.compare(0, 6, "aten::") != 0) {}

  // Converts the arguments once. Throws where one does not fit the schema.
  void read_arguments(PyObject* args, PyObject* kwargs, const PlanReader& reader) {
    with_numbers_as_tensors(numbers_as_tensors_, [&] { read(args, kwargs, reader); });
  }

  void run(Frame& frame) const override {
    if (!frame.stack) frame.stack.reset(new OperatorStack);
    auto& stack = frame.stack->values;
    stack.assign(constants_.begin(), constants_.end());
    with_numbers_as_tensors(numbers_as_tensors_, [&] {
      for (const Argument& argument : dynamic_) stack[argument.position()] = argument.value(frame);
    });
    {
      std::optional<c10::impl::ForceDispatchKeyGuard> keys;
      if (callers_keys_ && !frame.autograd) keys.emplace(frame.caller_keys);
      std::optional<at::AutoGradMode> mode;
      if (target_.grad) mode.emplace(*target_.grad);
      ReleaseGil released;
      handle_.callBoxed(stack);
    }
    take_results(frame, stack);
    stack.clear();
    if (PyErr_CheckSignals() < 0) throw_python_error();
  }

 private:
  void read(PyObject* args, PyObject* kwargs, const PlanReader& reader) {
    const auto& schema = handle_.schema().arguments();
    size_t used = 0;
    size_t positional = PySequence_Fast_GET_SIZE(args);
    for (size_t i = 0; i < schema.size(); ++i) {
      PyObject* value = nullptr;
      if (i < positional && !schema[i].kwarg_only()) {
        value = PySequence_Fast_GET_ITEM(args, i);
        ++used;
      } else if ((value = PyDict_GetItemString(kwargs, schema[i].name().c_str())) != nullptr) {
        ++used;
      }
      if (value == nullptr) {
        TORCH_CHECK(schema[i].default_value().has_value(), "missing argument ", schema[i].name());
        constants_.push_back(*schema[i].default_value());
      } else if (reader.has_refs(value)) {
        constants_.emplace_back();
        dynamic_.emplace_back(i, value, schema[i], reader);
      } else {
        constants_.push_back(to_ivalue(value, schema[i].real_type(), schema[i].N()));
      }
    }
    TORCH_CHECK(used == positional + PyDict_GET_SIZE(kwargs), "surplus arguments");
  }

  static std::string name_without_namespace(const c10::OperatorHandle& handle) {
    const std::string& name = handle.operator_name().name;
    size_t colons = name.find("::");
    return colons == std::string::npos ? name : name.substr(colons + 2);
  }

  void take_results(Frame& frame, torch::jit::Stack& stack) const {
    if (!target_.sequence) {
      if (stack.empty()) {  // an assertion, say
        store(frame.slots[target_.slots[0]], c10::IValue());
      } else if (stack.size() == 1) {
        store(frame.slots[target_.slots[0]], std::move(stack[0]));
      } else {
        store(frame.slots[target_.slots[0]], c10::ivalue::Tuple::create(std::move(stack)));
      }
    } else if (stack.size() == 1 && stack[0].isList()) {
      auto list = stack[0].toList();
      target_.check_count(list.size());
      for (size_t i = 0; i < target_.slots.size(); ++i)
        if (target_.slots[i] >= 0) store(frame.slots[target_.slots[i]], c10::IValue(list.get(i)));
    } else {
      target_.check_count(stack.size());
      for (size_t i = 0; i < target_.slots.size(); ++i)
        if (target_.slots[i] >= 0) store(frame.slots[target_.slots[i]], std::move(stack[i]));
    }
  }

  c10::OperatorHandle handle_;
  CallTarget target_;
  bool numbers_as_tensors_;
  bool callers_keys_;  // users' operators may have no kernel below autograd
  std::vector<c10::IValue> constants_;  // one per argument; those of dynamic arguments are None
  std::vector<Argument> dynamic_;
};

class PythonCall final : public Step {
 public:
  PythonCall(PyObject* function, PyObject* args, PyObject* kwargs, CallTarget target, const PlanReader& reader)
      : function_(reader.keep(function)), target_(std::move(target)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(args); ++i)
      args_.emplace_back(PySequence_Fast_GET_ITEM(args, i), reader);
    positional_ = args_.size();
    names_ = checked(PyTuple_New(PyDict_GET_SIZE(kwargs)));
    PyObject *key, *item;
    Py_ssize_t position = 0, n = 0;
    while (PyDict_Next(kwargs, &position, &key, &item)) {
      Py_INCREF(key);
      PyTuple_SET_ITEM(names_.get(), n++, key);
      args_.emplace_back(item, reader);
    }
  }

  void run(Frame& frame) const override {
    c10::SmallVector<PyObject*, 16> values;
    c10::SmallVector<Ref, 16> owned;
    for (const Template& arg : args_) {
      owned.push_back(arg.build(frame));
      values.push_back(owned.back().get());
    }
    Ref result;
    {
      // Python code sees the dispatcher as the caller left it
      std::optional<c10::impl::ForceDispatchKeyGuard> keys;
      if (!frame.autograd) keys.emplace(frame.caller_keys);
      std::optional<at::AutoGradMode> mode;
      if (target_.grad) mode.emplace(*target_.grad);
      PyObject* names = PyTuple_GET_SIZE(names_.get()) != 0 ? names_.get() : nullptr;
      result = checked(PyObject_Vectorcall(function_, values.data(), positional_, names));
    }
    if (!target_.sequence) {
      frame.slots[target_.slots[0]].set_from_python(result.get());
    } else if (!target_.slots.empty()) {
      Ref parts = checked(PySequence_Fast(result.get(), "the program takes a sequence of values from this call"));
      target_.check_count(PySequence_Fast_GET_SIZE(parts.get()));
      for (size_t i = 0; i < target_.slots.size(); ++i)
        if (target_.slots[i] >= 0)
          frame.slots[target_.slots[i]].set_from_python(PySequence_Fast_GET_ITEM(parts.get(), i));
    }
  }

 private:
  PyObject* function_;  // borrowed: see PlanReader::keep
  CallTarget target_;
  std::vector<Template> args_;  // positional ones, then those of `names_`
  size_t positional_ = 0;
  Ref names_;
};

// The operator behind a torch._ops.OpOverload, or nothing.
std::optional<c10::OperatorHandle> find_operator(PyObject* function) {
  Ref ops = checked(PyImport_ImportModule("torch._ops"));
  Ref overload_type = attribute(ops.get(), "OpOverload");
  if (reinterpret_cast<PyObject*>(Py_TYPE(function)) != overload_type.get()) return std::nullopt;
  Ref schema = attribute(function, "_schema");
  Ref name = attribute(schema.get(), "name"), overload = attribute(schema.get(), "overload_name");
  const char* name_text = PyUnicode_AsUTF8(name.get());
  const char* overload_text = PyUnicode_AsUTF8(overload.get());
  if (name_text == nullptr || overload_text == nullptr) throw_python_error();
  return c10::Dispatcher::singleton().findSchema({name_text, overload_text});
}

}  // namespace

std::unique_ptr<Step> make_operator_call(PyObject* step, const PlanReader& reader) {
  Ref function = attribute(step, "function");
  auto handle = find_operator(function.get());
  if (!handle) return nullptr;
  auto call = std::make_unique<OperatorCall>(*handle, CallTarget(step, reader));
  try {
    call->read_arguments(attribute(step, "args").get(), attribute(step, "kwargs").get(), reader);
  } catch (const std::exception&) {
    if (restore_python_error()) throw;
    PyErr_Clear();
    return nullptr;  // whatever is wrong with the arguments, the Python call says it as eager does
  }
  return call;
}

std::unique_ptr<Step> make_python_call(PyObject* step, const PlanReader& reader) {
  Ref function = attribute(step, "function");
  Ref args = attribute(step, "args"), kwargs = attribute(step, "kwargs");
  if (!PyTuple_Check(args.get()) || !PyDict_Check(kwargs.get()))
    throw_type_error("CallStep: args must be a tuple and kwargs a dict");
  return std::make_unique<PythonCall>(function.get(), args.get(), kwargs.get(), CallTarget(step, reader), reader);
}

}  // namespace jitpy
