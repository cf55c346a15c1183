// `PlanReader`: the dataclasses of a plan, read once while the plan is made native.
#include <algorithm>

#include <torch/csrc/Device.h>

#include "module.h"
#include "steps.h"

namespace jitpy {

bool flag(PyObject* object, const char* name) {
  int truth = PyObject_IsTrue(attribute(object, name).get());
  if (truth < 0) throw_python_error();
  return truth != 0;
}

int64_t integer(PyObject* object, const char* name) { return integer(attribute(object, name).get()); }

int32_t PlanReader::size_entry(PyObject* value) const {
  const int64_t entry = integer(value);
  TORCH_CHECK_VALUE(0 <= entry && entry < n_sizes, "plan: there is no size ", entry);
  return static_cast<int32_t>(entry);
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
    for_each(listed.get(), "plan: size entries must be a sequence",
             [&](PyObject* item) { fill.entries.push_back(size_entry(item)); });
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
  plain_view.assign(n_slots, false);
  for (int32_t view : slots(analysis("plain_views", plan).get())) plain_view[view] = true;
}

Ref PlanReader::analysis(const char* name, PyObject* plan) const {
  return checked(PyObject_CallMethod(module_.get(), name, "O", plan));
}

PyObject* PlanReader::keep(PyObject* value) const {
  if (PyList_Append(kept_.get(), value) < 0) throw_python_error();
  return value;
}

int32_t PlanReader::slot(PyObject* value) const {
  const int64_t number = integer(value);
  TORCH_CHECK_VALUE(0 <= number && number < n_slots, "plan: there is no slot ", number);
  return static_cast<int32_t>(number);
}

int32_t PlanReader::slot_attribute(PyObject* step, const char* name) const {
  return slot(attribute(step, name).get());
}

std::vector<int32_t> PlanReader::slots(PyObject* sequence) const {
  std::vector<int32_t> result;
  for_each(sequence, "plan: slots must be a sequence",
           [&](PyObject* item) { result.push_back(item == Py_None ? -1 : slot(item)); });
  return result;
}

Size PlanReader::size(PyObject* value) const {
  Size result;
  if (is_size_ref(value)) {
    result.entry = size_entry(attribute(value, "index").get());
  } else {
    result.value = integer(value);
  }
  return result;
}

Sizes PlanReader::sizes(PyObject* sequence) const {
  Sizes result;
  for_each(sequence, "plan: sizes must be a sequence", [&](PyObject* item) { result.push_back(size(item)); });
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

}  // namespace jitpy
