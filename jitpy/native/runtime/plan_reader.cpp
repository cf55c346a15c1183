// `PlanReader`: the dataclasses of a plan, read once while the plan is made native.
#include <algorithm>
#include <functional>

#include <torch/csrc/Device.h>

#include "module.h"
#include "steps.h"

namespace jitpy {

bool flag(PyObject* object, const char* name) {
  int truth = PyObject_IsTrue(attribute(object, name).get());
  if (truth < 0) throw_python_error();
  return truth != 0;
}

int64_t integer(PyObject* object, const char* name) {
  int64_t value = PyLong_AsLongLong(attribute(object, name).get());
  if (value == -1 && PyErr_Occurred()) throw_python_error();
  return value;
}

SymbolPlace PlanReader::symbol_place(PyObject* binding) const {
  SymbolPlace place{slot_attribute(binding, "slot"), -1, flag(binding, "stride")};
  if (attribute(binding, "dim").get() != Py_None) place.dim = static_cast<int32_t>(integer(binding, "dim"));
  return place;
}

SizeFill PlanReader::size_fill(PyObject* owner, const char* function, const char* entries) const {
  SizeFill fill;
  fill.function = reinterpret_cast<decltype(fill.function)>(integer(owner, function));
  Ref python = attribute(owner, (std::string(function) + "_py").c_str());
  if (fill.function == nullptr && python.get() != Py_None) fill.python = keep(python.get());
  Ref listed = attribute(owner, entries);
  if (listed.get() == Py_None) {
    for (int32_t i = 0; i < n_sizes; ++i) fill.entries.push_back(i);
  } else {
    Ref items = checked(PySequence_Fast(listed.get(), "plan: size entries must be a sequence"));
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
      long entry = PyLong_AsLong(PySequence_Fast_GET_ITEM(items.get(), i));
      if (entry == -1 && PyErr_Occurred()) throw_python_error();
      TORCH_CHECK_VALUE(0 <= entry && entry < n_sizes, "plan: there is no size ", entry);
      fill.entries.push_back(static_cast<int32_t>(entry));
    }
  }
  return fill;
}

PlanReader::PlanReader(PyObject* plan) {
  module_ = checked(PyImport_ImportModule("jitpy.runtime.plan"));
  kept_ = checked(PyList_New(0));
  auto type = [this](const char* name) {
    return reinterpret_cast<PyTypeObject*>(keep(attribute(module_.get(), name).get()));
  };
  alloc_ = type("AllocStep");
  kernel_ = type("KernelStep");
  launch_ = type("LaunchStep");
  call_ = type("CallStep");
  view_ = type("ViewStep");
  copy_ = type("CopyStep");
  bind_ = type("BindStep");
  free_ = type("FreeStep");
  slot_ref_ = type("SlotRef");
  size_ref_ = type("SizeRef");
  workspace_ = type("Workspace");
  n_inputs = static_cast<int32_t>(integer(plan, "n_inputs"));
  n_slots = static_cast<int32_t>(integer(plan, "n_slots"));
  n_sizes = static_cast<int32_t>(integer(plan, "n_sizes"));
  n_symbols = std::max<int32_t>(static_cast<int32_t>(integer(plan, "n_symbols")),
                                static_cast<int32_t>(PyObject_Size(attribute(plan, "symbols").get())));
  autograd = flag(plan, "autograd");
  Ref where = attribute(plan, "device");
  if (!THPDevice_Check(where.get())) throw_type_error("plan: its device is no torch.device");
  device = reinterpret_cast<THPDevice*>(where.get())->device;
  TORCH_CHECK_VALUE(!device.is_cuda() || device.has_index(), "plan: a CUDA device needs its index");
  TORCH_CHECK_VALUE(0 <= n_inputs && n_inputs <= n_slots && n_sizes >= 0, "plan: bad slot or size count");
  unseen_ = slots(attribute(plan, "unseen").get());
  find_plain_views(plan);
}

PyObject* PlanReader::keep(PyObject* value) const {
  if (PyList_Append(kept_.get(), value) < 0) throw_python_error();
  return value;
}

int32_t PlanReader::slot(PyObject* value) const {
  long number = PyLong_AsLong(value);
  if (number == -1 && PyErr_Occurred()) throw_python_error();
  TORCH_CHECK_VALUE(0 <= number && number < n_slots, "plan: there is no slot ", number);
  return static_cast<int32_t>(number);
}

int32_t PlanReader::slot_attribute(PyObject* step, const char* name) const {
  return slot(attribute(step, name).get());
}

std::vector<int32_t> PlanReader::slots(PyObject* sequence) const {
  Ref items = checked(PySequence_Fast(sequence, "plan: slots must be a sequence"));
  std::vector<int32_t> result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), i);
    result.push_back(item == Py_None ? -1 : slot(item));
  }
  return result;
}

Size PlanReader::size(PyObject* value) const {
  Size result;
  if (is_size_ref(value)) {
    int64_t entry = integer(value, "index");
    TORCH_CHECK_VALUE(0 <= entry && entry < n_sizes, "plan: there is no size ", entry);
    result.entry = static_cast<int32_t>(entry);
  } else {
    result.value = PyLong_AsLongLong(value);
    if (result.value == -1 && PyErr_Occurred()) throw_python_error();
  }
  return result;
}

Sizes PlanReader::sizes(PyObject* sequence) const {
  Ref items = checked(PySequence_Fast(sequence, "plan: sizes must be a sequence"));
  Sizes result;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i)
    result.push_back(size(PySequence_Fast_GET_ITEM(items.get(), i)));
  return result;
}

bool PlanReader::has_refs(PyObject* value) const {
  if (is_slot_ref(value) || is_size_ref(value)) return true;
  if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      if (has_refs(PySequence_Fast_GET_ITEM(value, i))) return true;
  } else if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item))
      if (has_refs(item)) return true;
  } else if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    return has_refs(slice->start) || has_refs(slice->stop) || has_refs(slice->step);
  }
  return false;
}

void PlanReader::visit_slots(PyObject* value, const std::function<void(int32_t)>& visit) const {
  if (is_slot_ref(value)) {
    visit(slot_attribute(value, "slot"));
  } else if (PyTuple_CheckExact(value) || PyList_CheckExact(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i)
      visit_slots(PySequence_Fast_GET_ITEM(value, i), visit);
  } else if (PyDict_CheckExact(value)) {
    PyObject *key, *item;
    Py_ssize_t position = 0;
    while (PyDict_Next(value, &position, &key, &item)) visit_slots(item, visit);
  } else if (PySlice_Check(value)) {
    auto* slice = reinterpret_cast<PySliceObject*>(value);
    for (PyObject* part : {slice->start, slice->stop, slice->step}) visit_slots(part, visit);
  }
}

std::vector<int32_t> PlanReader::slots_read(PyObject* step) const {
  std::vector<int32_t> found;
  auto add = [&](int32_t slot) { found.push_back(slot); };
  if (Py_TYPE(step) == call_) {
    visit_slots(attribute(step, "args").get(), add);
    visit_slots(attribute(step, "kwargs").get(), add);
  } else if (Py_TYPE(step) == kernel_) {
    visit_slots(attribute(step, "pointers").get(), add);
  } else if (Py_TYPE(step) == launch_) {
    visit_slots(attribute(step, "arguments").get(), add);
  } else if (Py_TYPE(step) == view_) {
    add(slot_attribute(step, "base"));
  } else if (Py_TYPE(step) == copy_) {
    add(slot_attribute(step, "target"));
    add(slot_attribute(step, "source"));
  } else if (Py_TYPE(step) != alloc_ && Py_TYPE(step) != free_) {
    for (int32_t i = 0; i < n_slots; ++i) add(i);  // of what may read anything nothing is known
  }
  return found;
}

// A view needs the bookkeeping of autograd and version counters only where somebody can see it as a tensor object, and
// something else that shares its memory as well.
void PlanReader::find_plain_views(PyObject* plan) {
  visible_.assign(n_slots, false);
  for (int32_t i = 0; i < n_inputs; ++i) visible_[i] = true;
  for (int32_t i : slots(attribute(plan, "outputs").get())) {
    TORCH_CHECK_VALUE(i >= 0, "plan: an output is None");
    visible_[i] = true;
  }
  auto mark = [&](PyObject* value) { visit_slots(value, [&](int32_t number) { visible_[number] = true; }); };
  // `home[slot]`: the slot whose memory a view shows, where an AllocStep made it; else -1
  std::vector<int32_t> home(n_slots, -1), views;
  Ref steps = checked(PySequence_Fast(attribute(plan, "steps").get(), "plan: steps must be a sequence"));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(steps.get()); ++i) {
    PyObject* step = PySequence_Fast_GET_ITEM(steps.get(), i);
    if (Py_TYPE(step) == call_) {
      mark(attribute(step, "args").get());
      mark(attribute(step, "kwargs").get());
      for (int32_t number : slots(attribute(step, "slots").get()))
        if (number >= 0) home[number] = -1;
    } else if (Py_TYPE(step) == copy_) {
      visible_[slot_attribute(step, "target")] = true;
    } else if (Py_TYPE(step) == alloc_) {
      int32_t number = slot_attribute(step, "slot");
      home[number] = number;
    } else if (Py_TYPE(step) == view_) {
      int32_t number = slot_attribute(step, "slot");
      home[number] = home[slot_attribute(step, "base")];
      views.push_back(number);
    }
  }
  plain_view.assign(n_slots, false);
  std::vector<int> seen(n_slots, 0);
  for (int32_t number : views)
    if (visible_[number] && home[number] >= 0) ++seen[home[number]];
  for (int32_t number : views) {
    int32_t owner = home[number];
    bool only_one = owner >= 0 && !visible_[owner] && seen[owner] == 1;
    plain_view[number] = !autograd && (!visible_[number] || only_one);
  }
}

}  // namespace jitpy
