// `Differentiable`: a forward executable whose calls autograd sees as one node, with backward passes made on demand.
#include <algorithm>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "autograd_node.h"
#include "module.h"

namespace jitpy {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;

namespace {

// The fields of the Python type.
struct Differentiable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* weak_references;
  PyObject* forward;
  PyObject* object;  // the NodeSpec
  bool native;
  Spec* spec;
};

// A value of an output or input that shares memory with a saved intermediate shares its version counter too, so that
// a change in place is noticed.
void share_versions(Slots& results, size_t n_outputs, const Slots& inputs) {
  for (size_t i = n_outputs; i < results.size(); ++i) {
    const at::Tensor& extra = results[i].tensor;
    if (!extra.defined() || !extra.has_storage()) continue;
    auto* memory = extra.storage().unsafeGetStorageImpl();
    auto shares = [memory](const at::Tensor& other) {
      return other.defined() && other.has_storage() && other.storage().unsafeGetStorageImpl() == memory;
    };
    auto take = [&](const Slot* begin, const Slot* end) {
      auto found = std::find_if(begin, end, [&](const Slot& slot) { return shares(slot.tensor); });
      if (found == end || found->tensor.is_inference()) return false;
      torch::autograd::impl::set_version_counter(extra, torch::autograd::impl::version_counter(found->tensor));
      return true;
    };
    take(results.begin(), results.begin() + n_outputs) || take(inputs.begin(), inputs.end());
  }
}

bool is_watched_leaf(const Edge& edge) {
  auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get());
  return leaf && (!leaf->tensor_pre_hooks().empty() || leaf->tensor_post_acc_grad_hooks() || !leaf->pre_hooks().empty() ||
                  !leaf->post_hooks().empty());
}

// Has the engine come to leaves with hooks in the order of `edges`: of what is ready it runs first what was made last.
void keep_order_of_hooks(edge_list& edges, const Spec& spec, const Slots& inputs) {
  if (std::count_if(edges.begin(), edges.end(), is_watched_leaf) < 2) return;
  for (size_t k = edges.size(); k-- > 0;) {
    if (!is_watched_leaf(edges[k])) continue;
    NodePtr gate = own(new PassingNode(std::move(edges[k])));
    auto number = gate->add_input_metadata(inputs[spec.grad_inputs[k]].tensor);
    edges[k] = {gate, number};
  }
}

// Autograd's record of a view, or null for a tensor that is none to it.
torch::autograd::DifferentiableViewMeta* view_meta(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() && !tensor.is_inference() ? meta : nullptr;
}

// An input that was written to gets the history of its new value. A view passes it on to its base, whose other elements
// keep theirs: for that torch asks the node first for the gradient of the view's former value. Where the node has none,
// it is zero.
void rebase(const at::Tensor& input, Edge former, NodePtr node) {
  auto number = node->add_input_metadata(input);
  const bool starts_with_it = former.is_valid() && node->num_outputs() != 0 && node->next_edge(0) == former;
  if (view_meta(input) != nullptr && !starts_with_it) {
    auto* copy = new torch::autograd::CopyBackwards;
    copy->src_options = input.options();
    copy->set_next_edges({std::move(former), {std::move(node), number}});
    node = own(copy);
    number = node->add_input_metadata(input);
  }
  torch::autograd::impl::rebase_history(input, {std::move(node), number});
}

// Where the gradients of inputs go. Asked for before the forward executable runs: behind a write a view finds another
// history.
edge_list edges_of(const std::vector<int32_t>& positions, const Slots& inputs) {
  edge_list edges;
  edges.reserve(positions.size());
  for (int32_t i : positions) edges.push_back(torch::autograd::impl::gradient_edge(inputs[i].tensor));
  return edges;
}

void record(Differentiable* self, const Slots& inputs, Slots& results, KeptInputs kept, edge_list edges,
            edge_list former) {
  Spec& spec = *self->spec;
  keep_order_of_hooks(edges, spec, inputs);
  auto* node = new JitNode(reinterpret_cast<PyObject*>(self), &spec, std::move(edges));
  NodePtr owned = own(node);
  for (auto [position, extra] : spec.copies) {
    size_t index = spec.n_outputs + extra;
    TORCH_CHECK(index < results.size(), spec.name, ": there is no extra result ", extra);
    if (kept.values.empty()) break;
    at::Tensor copy = results[index].tensor.variable_data();
    for (size_t k = 0; k < spec.grad_inputs.size(); ++k)
      if (spec.grad_inputs[k] == position && node->next_edge(k).is_valid())
        torch::autograd::impl::set_gradient_edge(copy, node->next_edge(k));  // it was computed as the input was
    kept.versions[position] = copy._version();
    kept.values[position].tensor = std::move(copy);
  }
  node->kept = std::move(kept);
  auto written = [&](int32_t output) -> const Slot& { return inputs[spec.written[output - spec.n_outputs]]; };
  for (int32_t i : spec.grad_outputs) {
    if (i >= spec.n_outputs) {
      const at::Tensor& input = written(i).tensor;
      NodePtr maker = owned;
      if (spec.grad_outputs.size() > 1) maker = own(new PassingNode({owned, owned->add_input_metadata(input)}));
      rebase(input, std::move(former[i - spec.n_outputs]), std::move(maker));
      continue;
    }
    at::Tensor& output = results[i].tensor;
    TORCH_CHECK(output.defined(), spec.name, ": output ", i, " is not a tensor");
    // an output is nobody's view: what it may be a view of, nobody sees
    if (output.is_view()) output = output.variable_data();
    TORCH_CHECK(!output.requires_grad(), spec.name, ": output ", i, " has a history already");
    if (spec.grad_outputs.size() == 1) {
      torch::autograd::set_history(output, owned);
    } else {
      auto number = owned->add_input_metadata(output);
      torch::autograd::set_history(output, own(new PassingNode({owned, number})));
    }
  }
  if (results.size() > static_cast<size_t>(spec.n_outputs)) share_versions(results, spec.n_outputs, inputs);
  auto value = [&](Place place) -> const Slot& {
    if (place.kind == Kind::output && place.index >= spec.n_outputs) return written(place.index);
    size_t index = place.kind == Kind::extra ? spec.n_outputs + place.index : place.index;
    const Slots& from = place.kind == Kind::input || place.kind == Kind::data ? inputs : results;
    TORCH_CHECK(index < from.size(), spec.name, ": there is no extra result ", place.index);
    return from[index];
  };
  for (Place place : spec.saved) {
    if (place.kind != Kind::data) {
      node->save(value(place), place.kind == Kind::output);
    } else {
      Slot data;
      data.tensor = value(place).tensor.variable_data();
      node->save(data, false);
    }
  }
  for (const WatchedPlace& watched : spec.watched) node->watch(value(watched.place).tensor, watched.text);
}

KeptInputs keep(const Spec& spec, const Slots& inputs) {
  KeptInputs kept;
  kept.values.resize(inputs.size());
  kept.versions.resize(inputs.size());
  for (int32_t i : spec.kept) {
    kept.values[i].share(inputs[i]);
    const at::Tensor& tensor = inputs[i].tensor;
    if (tensor.defined()) kept.versions[i] = tensor.is_inference() ? 0 : tensor._version();
  }
  if (spec.random)
    kept.random_state =
        checked(PyObject_CallOneArg(attribute(python_half(), "random_state").get(), spec.generators.get()));
  return kept;
}

// Whether a checkpoint that was not captured runs: it pairs what is saved now, by number, with what a second run saves,
// which is a plain one. So eager's ops have to run, which save the same in the same order.
bool is_in_checkpoint() {
  auto hooks = at::SavedTensorDefaultHooks::get_hooks();
  if (!hooks) return false;
  PyObject* pack = object_behind(hooks->first);
  Ref module(PyObject_GetAttrString(pack, "__module__"));
  if (!module) PyErr_Clear();
  return module && PyUnicode_Check(module.get()) &&
         PyUnicode_CompareWithASCIIString(module.get(), "torch.utils.checkpoint") == 0;
}

Ref differentiable_run(Differentiable* self, PyObject* const* args) {
  const Spec& spec = *self->spec;
  Slots inputs;
  inputs.reserve(spec.n_inputs);
  for (int32_t i = 0; i < spec.n_inputs; ++i) {
    PyObject* value = args[i];
    if (!is_tensor(value) && !PyLong_Check(value) && !PyFloat_Check(value) && !PyComplex_Check(value))
      throw_type_error("input " + std::to_string(i) + " must be a tensor or a number, not " +
                             Py_TYPE(value)->tp_name);
    inputs.emplace_back().set_from_python(value);
  }
  bool needed = std::any_of(spec.grad_inputs.begin(), spec.grad_inputs.end(), [&](int32_t i) {
    return inputs[i].tensor.defined() && inputs[i].tensor.requires_grad();
  });
  if (needed && (spec.prefers_eager() || (spec.has_eager && !spec.changes && is_in_checkpoint())))
    return checked(PyObject_Vectorcall(self->spec->eager_run(), args, spec.n_inputs, nullptr));
  KeptInputs kept;
  if (needed && spec.has_eager) kept = keep(spec, inputs);
  edge_list edges, former;
  if (needed) {
    edges = edges_of(spec.grad_inputs, inputs);
    former = edges_of(spec.written, inputs);
  }
  Slots given;
  for (const Slot& input : inputs) given.emplace_back().share(input);
  Slots results;
  {
    c10::AutoGradMode no_grad(false);
    results = call(self->forward, self->native, std::move(given));
  }
  TORCH_CHECK(results.size() >= static_cast<size_t>(spec.n_outputs), spec.name, ": the forward returned too little");
  if (needed) record(self, inputs, results, std::move(kept), std::move(edges), std::move(former));
  Ref tuple = checked(PyTuple_New(spec.n_outputs));
  for (int32_t i = 0; i < spec.n_outputs; ++i)
    PyTuple_SET_ITEM(tuple.get(), i, checked(results[i].to_python()).release());
  return tuple;
}

PyObject* differentiable_call(PyObject* object, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != self->spec->n_inputs || (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0)) {
    PyErr_Format(PyExc_TypeError, "this function takes %d positional arguments, got %zd%s", self->spec->n_inputs,
                 count, kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0 ? " and keywords" : "");
    return nullptr;
  }
  try {
    return differentiable_run(self, args).release();
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

PyObject* differentiable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject *forward, *object;
  static const char* names[] = {"forward", "spec", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Differentiable", const_cast<char**>(names), &forward, &object))
    return nullptr;
  try {
    auto spec = std::make_unique<Spec>(object);
    auto* self = reinterpret_cast<Differentiable*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = differentiable_call;
    self->forward = Py_NewRef(forward);
    self->object = Py_NewRef(object);
    self->native = is_executable(forward);
    self->spec = spec.release();
    return reinterpret_cast<PyObject*>(self);
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

int differentiable_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  Py_VISIT(self->forward);
  Py_VISIT(self->object);
  if (self->spec != nullptr)
    for (const auto& variant : self->spec->variants) {
      Py_VISIT(variant->object.get());
      Py_VISIT(variant->run.get());
    }
  if (self->spec != nullptr) Py_VISIT(self->spec->eager.get());
  return 0;
}

// Nothing is cleared: nodes need the spec as long as they hold this object. Cycles are broken by the other objects.
void differentiable_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Differentiable*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  delete self->spec;
  Py_CLEAR(self->forward);
  Py_CLEAR(self->object);
  Py_TYPE(object)->tp_free(object);
}

PyObject* differentiable_forward(PyObject* object, void*) {
  return Py_NewRef(reinterpret_cast<Differentiable*>(object)->forward);
}

PyObject* differentiable_spec(PyObject* object, void*) {
  return Py_NewRef(reinterpret_cast<Differentiable*>(object)->object);
}

PyGetSetDef differentiable_getset[] = {
    {"forward", differentiable_forward, nullptr, "The forward executable.", nullptr},
    {"spec", differentiable_spec, nullptr, "The NodeSpec.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

// ---- what only C++ sees of autograd's records ----

// Whether hooks were put on the node that adds gradients to a leaf's `.grad` (removed ones count).
PyObject* accumulation_has_hooks(PyObject*, PyObject* object) {
  if (!is_tensor(object)) {
    PyErr_SetString(PyExc_TypeError, "a tensor is due");
    return nullptr;
  }
  auto node = torch::autograd::impl::try_get_grad_accumulator(tensor_of(object));
  return PyBool_FromLong(node && (!node->pre_hooks().empty() || !node->post_hooks().empty()));
}

// A view was made before its base got a history, and autograd is to find its own when it is next asked: it looks at the
// version of the memory to see that.
PyObject* forget_history(PyObject*, PyObject* object) {
  if (!is_tensor(object)) {
    PyErr_SetString(PyExc_TypeError, "forget_history(tensor)");
    return nullptr;
  }
  const at::Tensor& tensor = tensor_of(object);
  if (auto* meta = view_meta(tensor)) {
    const std::lock_guard<std::mutex> lock(meta->mutex_);
    meta->grad_fn_.reset();
    meta->output_nr_ = 0;
    meta->set_attr_version(static_cast<uint32_t>(tensor._version()) - 1);
  }
  Py_RETURN_NONE;
}

// Whether a view has no history of its own as yet, though its base has got one.
bool is_late(const at::Tensor& view, torch::autograd::DifferentiableViewMeta* meta) {
  const std::lock_guard<std::mutex> lock(meta->mutex_);
  return meta->grad_fn_ == nullptr && !meta->requires_grad_ && meta->get_backward_view().base_.requires_grad() &&
         meta->get_attr_version() != static_cast<uint32_t>(view._version());
}

// Whether the history of a view lies behind that of its base by first edges only, not too many.
bool comes_from(const Node* view, const Node* base) {
  for (int steps = 0; steps < 32 && view != nullptr; ++steps) {
    if (view == base) return true;
    view = view->num_outputs() != 0 ? view->next_edge(0).function.get() : nullptr;
  }
  return false;
}

PyObject* takes_writes(PyObject*, PyObject* object) {
  if (!is_tensor(object)) Py_RETURN_FALSE;
  const at::Tensor& tensor = tensor_of(object);
  const bool computed = tensor.requires_grad() && !tensor.is_leaf();
  auto* meta = view_meta(tensor);
  if (meta == nullptr) return PyBool_FromLong(computed || !tensor.requires_grad());
  const at::Tensor& base = meta->get_backward_view().base_;
  if (meta->get_creation_meta() != torch::autograd::CreationMeta::DEFAULT || !base.is_alias_of(tensor) ||
      is_late(tensor, meta))
    Py_RETURN_FALSE;
  if (!tensor.requires_grad()) return PyBool_FromLong(!base.requires_grad());
  try {
    return PyBool_FromLong(computed && base.requires_grad() && !base.is_leaf() &&
                           comes_from(tensor.grad_fn().get(), base.grad_fn().get()));
  } catch (const std::exception&) {  // its base was written to, in a way that autograd cannot follow
    Py_RETURN_FALSE;
  }
}

PyMethodDef functions[] = {
    {"takes_writes", takes_writes, METH_O, "takes_writes(tensor) -> bool: see jitpy/runtime/autograd_node.py."},
    {"forget_history", forget_history, METH_O, "forget_history(tensor): have autograd look for a view's history anew."},
    {"accumulation_has_hooks", accumulation_has_hooks, METH_O,
     "Whether hooks were put on the node that adds gradients to a leaf's `.grad`."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject differentiable_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject node_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

}  // namespace
}  // namespace jitpy

int init_differentiable(PyObject* module) {
  using namespace jitpy;
  PyTypeObject& type = differentiable_type;
  type.tp_name = "_jitpy_runtime.Differentiable";
  type.tp_doc = "Differentiable(forward, spec): a compiled graph as one node of autograd's.";
  type.tp_basicsize = sizeof(Differentiable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_new = differentiable_new;
  type.tp_dealloc = differentiable_dealloc;
  type.tp_traverse = differentiable_traverse;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(Differentiable, vectorcall);
  type.tp_weaklistoffset = offsetof(Differentiable, weak_references);
  type.tp_getset = differentiable_getset;
  if (PyType_Ready(&type) < 0) return -1;
  // `type(tensor.grad_fn)`, with the methods that every node has
  register_node_type(node_type, "JitBackward", {&typeid(JitNode), &typeid(PassingNode)});
  if (PyModule_AddFunctions(module, functions) < 0) return -1;
  Py_INCREF(&type);
  if (PyModule_AddObject(module, "Differentiable", reinterpret_cast<PyObject*>(&type)) < 0) {
    Py_DECREF(&type);
    return -1;
  }
  return 0;
}
