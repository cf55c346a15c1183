// The node of autograd's graph: what it keeps, checks and frees, and how it runs a backward pass.
//
// Locks: all that a node changes after it was made is changed with the GIL held; no other lock is taken.
#include "autograd_node.h"

#include <algorithm>

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace jitpy {

using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

namespace {

class WithGil {
 public:
  WithGil() : state_(PyGILState_Ensure()) {}
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Gradients that kernels cannot take: those of a transform (vmap over gradients), sparse ones, subclasses, and such as
// may have tangents.
bool only_for_eager(const variable_list& grads) {
  static constexpr c10::DispatchKeySet foreign({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                                c10::DispatchKey::Batched, c10::DispatchKey::FuncTorchBatched,
                                                c10::DispatchKey::FuncTorchGradWrapper});
  if (torch::autograd::ForwardADLevel::try_get_by_idx(0) != nullptr) return true;
  return std::any_of(grads.begin(), grads.end(), [](const at::Tensor& grad) {
    return grad.defined() && (grad.layout() != at::kStrided || grad.key_set().has_any(foreign));
  });
}

// The strides of dense memory; `order` has -1 - axis for each axis, from the outermost to the innermost.
std::vector<int64_t> strides_of_order(c10::IntArrayRef sizes, const std::vector<int64_t>& order) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const int64_t axis = -1 - *it;
    strides[axis] = step;
    step *= std::max<int64_t>(sizes[axis], 1);
  }
  return strides;
}

// A gradient as a compiled backward pass takes it: with its values in its memory, in the given layout.
at::Tensor laid_out(const at::Tensor& grad, const std::optional<std::vector<int64_t>>& layout) {
  if (layout && !layout->empty() && layout->front() < 0) {
    TORCH_CHECK(grad.dim() == static_cast<int64_t>(layout->size()), "a gradient has other axes than its result");
    return laid_out(grad, strides_of_order(grad.sizes(), *layout));
  }
  const auto& strides = layout;
  static constexpr c10::DispatchKeySet lazy(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  bool fits = strides ? grad.strides() == c10::IntArrayRef(*strides) : grad.is_contiguous();
  if (fits && !grad.key_set().has_any(lazy)) return grad;
  at::Tensor result =
      strides ? empty_strided(grad.sizes(), *strides, grad.options()) : grad.new_empty(grad.sizes());
  return result.copy_(grad);
}

Slots from_python(PyObject* sequence) {
  Slots result;
  for_each(sequence, "a compiled graph returns a tuple", [&](PyObject* item) {
    Slot& slot = result.emplace_back();
    if (item != Py_None) slot.set_from_python(item);
  });
  return result;
}

// As a list for Python: None where there is nothing.
Ref to_list(const Slots& values) {
  Ref list = checked(PyList_New(values.size()));
  for (size_t i = 0; i < values.size(); ++i)
    PyList_SET_ITEM(list.get(), i, values[i].empty() ? Py_NewRef(Py_None) : checked(values[i].to_python()).release());
  return list;
}

Ref to_list(const variable_list& tensors) {
  Slots values;
  for (const at::Tensor& tensor : tensors) values.emplace_back().tensor = tensor;
  return to_list(values);
}

// A tensor as eager's error names it.
std::string describe(const at::Tensor& tensor) {
  std::ostringstream what;
  switch (tensor.scalar_type()) {
    case at::kByte: case at::kChar: case at::kShort: case at::kInt: case at::kLong:
    case at::kHalf: case at::kFloat: case at::kDouble:
      what << "[torch." << (tensor.is_cuda() ? "cuda." : "") << c10::toString(tensor.scalar_type()) << "Tensor ";
      break;
    default:
      what << "[" << (tensor.is_cuda() ? "CUDA" : "CPU") << c10::toString(tensor.scalar_type()) << "Type ";
  }
  what << tensor.sizes() << "]";
  if (const auto& maker = tensor.grad_fn())
    what << ", which is output " << tensor.output_nr() << " of " << maker->name() << ",";
  return what.str();
}

template <class N>
auto base_release(N* node, int) -> decltype(node->N::release_resources()) {
  return node->N::release_resources();
}
template <class N>
void base_release(N*, long) {}

// Whether nothing but the call that takes the graph apart holds the node.
template <class N>
bool is_dying(N* node) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<N>>) {
    return node->weak_from_this().use_count() <= 1;
  } else {
    return c10::raw::intrusive_ptr::use_count(node) <= 1;
  }
}

[[noreturn]] void raise_changed(const std::string& text, uint32_t version, uint32_t expected) {
  checked(PyObject_CallFunction(attribute(python_half(), "raise_changed").get(), "sII", text.c_str(), version, expected));
  throw std::logic_error("raise_changed returned");
}

}  // namespace

JitNode::JitNode(PyObject* owner, Spec* spec, edge_list&& edges) : Node(std::move(edges)), owner_(owner), spec_(spec) {
  Py_INCREF(owner);
  saved_.reserve(spec->saved.size());
}

JitNode::~JitNode() {
  if (!Py_IsInitialized()) {  // at exit objects are left alone
    new KeptInputs(std::move(kept));
    return;
  }
  drop_all();
  WithGil gil;
  Py_DECREF(owner_);
}

void JitNode::drop_all() {
  if (!Py_IsInitialized()) return;
  WithGil gil;
  for (Saved& saved : saved_) Py_XDECREF(saved.number);
  saved_.clear();
  kept = KeptInputs();
}

void JitNode::release_resources() {
  drop_all();
  base_release(static_cast<Node*>(this), 0);
}

void JitNode::release_variables() {
  if (is_dying(static_cast<Node*>(this))) drop_all();  // the engine calls this too: see `release`
}

// A number for dtype, device, sizes and strides: never 0.
static uint64_t layout_of(const at::Tensor& tensor) {
  uint64_t found = static_cast<uint64_t>(tensor.scalar_type()) * 31 + static_cast<uint64_t>(tensor.device().type());
  auto add = [&](int64_t value) { found = (found ^ static_cast<uint64_t>(value)) * 0x100000001b3ULL + (found >> 29); };
  for (int64_t size : tensor.sizes()) add(size);
  for (int64_t stride : tensor.strides()) add(stride);
  return found | 1ULL << 63;
}

void JitNode::save(const Slot& value, bool is_output) {
  Saved& saved = saved_.emplace_back();
  if (value.tensor.defined()) {
    if (!is_output && value.tensor.is_leaf()) saved.layout = layout_of(value.tensor);
    is_output = is_output && !value.tensor.is_leaf();  // one without a gradient has no history to make a cycle with
    saved.tensor = SavedVariable(value.tensor, is_output, is_output && value.tensor.is_view());
  } else {
    Py_XINCREF(value.object);
    saved.number = value.object;
  }
}

void JitNode::watch(const at::Tensor& tensor, const std::string& text) {
  watched_.push_back({torch::autograd::impl::version_counter(tensor),
                      static_cast<uint32_t>(tensor.is_inference() ? 0 : tensor._version()),
                      text.empty() ? describe(tensor) : std::string()});
}

// Where one of eager's nodes that run in this pass would find that what it saved was changed in place.
void JitNode::refuse_changes(const Pass& pass) const {
  for (size_t i = 0; i < watched_.size(); ++i) {
    const Watched& watched = watched_[i];
    if (!watched.version.enabled() || watched.version.current_version() == watched.expected) continue;
    if (!pass.full || any_ran_) {
      Bits running = spec_->watchers[i];
      running &= pass.running;
      if (running.empty()) continue;
    }
    const std::string& text = watched.text.empty() ? spec_->watched[i].text : watched.text;
    raise_changed(text, watched.version.current_version(), watched.expected);
  }
}

JitNode::Pass JitNode::pass(const variable_list& grads) const {
  Pass pass{Bits(grads.size()), Bits(spec_->grad_inputs.size())};
  for (size_t i = 0; i < grads.size(); ++i)
    if (grads[i].defined()) {
      pass.defined.set(i);
    } else {
      pass.full = false;
    }
  for (size_t i = 0; i < spec_->grad_inputs.size(); ++i)
    if (task_should_compute_output(i)) {
      pass.wanted.set(i);
    } else if (should_compute_output(i)) {
      pass.full = false;
    }
  return pass;
}

// As in eager's nodes: one that has freed what it saved does not run again.
void JitNode::refuse_second_run(Pass& pass) const {
  if (pass.full && !any_ran_) return;
  spec_->read_paths();
  Bits under, over;
  for (size_t i = 0; i < spec_->under.size(); ++i)
    if (pass.defined.has(i)) under |= spec_->under[i];
  for (size_t i = 0; i < spec_->over.size(); ++i)
    if (pass.wanted.has(i)) over |= spec_->over[i];
  pass.running = under;
  pass.running &= over;
  TORCH_CHECK(all_ran_ ? pass.running.empty() : !pass.running.meets(ran_), torch::autograd::ERR_BACKWARD_TWICE);
}

// After a pass: frees what no pass can need that does not meet a node that has run.
void JitNode::release(const Pass& pass) {
  any_ran_ = true;
  all_ran_ |= pass.full;
  ran_ |= pass.running;
  auto over = [&](size_t output, size_t input) {  // no pass from this output to this input can follow
    if (all_ran_) return true;
    Bits path = spec_->under[output];
    path &= spec_->over[input];
    return path.meets(ran_);
  };
  bool all_over = true;
  for (size_t i = 0; i < spec_->grad_outputs.size() && all_over; ++i)
    for (size_t k = 0; k < spec_->grad_inputs.size() && all_over; ++k) all_over = over(i, k);
  for (size_t place = 0; place < saved_.size(); ++place) {
    bool needed = false;
    if (!all_over)
      for (size_t i = 0; i < spec_->grad_outputs.size(); ++i)
        for (size_t k = 0; k < spec_->grad_inputs.size() && !needed; ++k)
          needed = spec_->needs[place][i].has(k) && !over(i, k);
    if (needed || saved_[place].number != nullptr) continue;
    saved_[place].tensor.reset_data();
    saved_[place].freed = true;
  }
  if (all_over) {
    watched_.clear();
    kept = KeptInputs();
  }
}

// The saved values that this pass reads, or that eager's nodes check: others may be freed, or changed in place since.
Slots JitNode::unpack(const Pass& pass) {
  Slots values;
  values.reserve(saved_.size());
  NodePtr self = getptr();
  auto needed = [&](size_t place) {
    if (pass.full || pass.running.meets(spec_->savers[place])) return true;
    for (size_t i = 0; i < spec_->grad_outputs.size(); ++i)
      if (pass.defined.has(i) && spec_->needs[place][i].meets(pass.wanted)) return true;
    return false;
  };
  for (size_t place = 0; place < saved_.size(); ++place) {
    const Saved& saved = saved_[place];
    Slot& value = values.emplace_back();
    if (saved.number != nullptr) {
      value.set_from_python(saved.number);
    } else if (!saved.freed && needed(place)) {
      value.tensor = saved.tensor.unpack(self);
      if (saved.layout != 0 && saved.layout != layout_of(value.tensor))
        checked(PyObject_CallFunction(attribute(python_half(), "raise_replaced").get(), nullptr));
    }
  }
  return values;
}

// One value for each wanted gradient: empty where there is none.
Slots JitNode::by_kernels(const Spec::Variant& variant, Slots values, variable_list& grads) const {
  size_t number = 0;
  for (at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    if (number < variant.layouts.size()) grad = laid_out(grad, variant.layouts[number]);
    values.emplace_back().tensor = std::move(grad);
    ++number;
  }
  grads.clear();
  Slots found = call(variant.run.get(), variant.native, std::move(values));
  if (variant.present.empty()) return found;
  Slots result;
  size_t next = 0;
  for (bool there : variant.present) {
    Slot& slot = result.emplace_back();
    if (there && next < found.size()) slot = std::move(found[next++]);
  }
  return result;
}

// The result of a pass for which nothing is kept, behind one that freed everything: numbers are left.
Slots JitNode::by_linear(const Slots& values, const variable_list& grads, const Pass& pass) const {
  for (size_t place = 0; place < saved_.size(); ++place)
    for (size_t i = 0; i < spec_->grad_outputs.size(); ++i)
      TORCH_CHECK(!saved_[place].freed || !pass.defined.has(i) || !spec_->needs[place][i].meets(pass.wanted),
                  torch::autograd::ERR_BACKWARD_TWICE);
  Ref kept = to_list(values), given = to_list(grads);
  Ref defined = pass.defined.to_python(), wanted = pass.wanted.to_python();
  Ref function = attribute(python_half(), "linear_gradients");
  Ref found = checked(PyObject_CallFunctionObjArgs(function.get(), spec_->object, defined.get(), wanted.get(),
                                                   kept.get(), given.get(), nullptr));
  return from_python(found.get());
}

Slots JitNode::by_eager(const Slots& inputs, const variable_list& grads, const Bits& wanted) const {
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].tensor.defined() && inputs[i].tensor._version() != kept.versions[i])
      raise_changed(describe(inputs[i].tensor), inputs[i].tensor._version(), kept.versions[i]);
  Ref values = to_list(inputs), given = to_list(grads), asked = checked(PyList_New(spec_->grad_inputs.size()));
  for (size_t i = 0; i < spec_->grad_inputs.size(); ++i)
    PyList_SET_ITEM(asked.get(), i, Py_NewRef(wanted.has(i) ? Py_True : Py_False));
  PyObject* state = kept.random_state ? kept.random_state.get() : Py_None;
  Ref function = attribute(python_half(), "eager_gradients");
  Ref found = checked(PyObject_CallFunctionObjArgs(function.get(), spec_->eager_run(), spec_->object, values.get(),
                                                   state, given.get(), asked.get(), nullptr));
  return from_python(found.get());
}

variable_list JitNode::apply(variable_list&& grads) {
  WithGil gil;
  try {
    variable_list results(spec_->grad_inputs.size());
    Pass pass = this->pass(grads);
    if (pass.defined.empty() || pass.wanted.empty()) return results;
    refuse_second_run(pass);
    refuse_changes(pass);
    bool differentiable = c10::GradMode::is_enabled();
    bool eager = differentiable || only_for_eager(grads);
    spec_->differentiable_passes = differentiable && spec_->differentiable_passes >= 0
                                       ? spec_->differentiable_passes + 1 : -1;
    const Spec::Variant* variant = eager ? nullptr : &spec_->variant(pass.defined, pass.wanted);
    Slots values = unpack(pass), inputs;
    std::vector<const at::TensorImpl*> given;  // as they are; kept alive by whoever has their histories
    for (const at::Tensor& grad : grads)
      if (grad.defined() && grad.requires_grad()) given.push_back(grad.unsafeGetTensorImpl());
    if (eager)
      for (const Slot& input : kept.values) inputs.emplace_back().share(input);
    Slots found;
    if (eager) {
      if (inputs.empty() && (spec_->has_eager || spec_->has_linear)) {
        TORCH_CHECK(spec_->has_linear, torch::autograd::ERR_BACKWARD_TWICE);
        found = by_linear(values, grads, pass);
      } else {
        values.clear();
        found = by_eager(inputs, grads, pass.wanted);
      }
      if (!torch::autograd::get_current_graph_task_keep_graph()) release(pass);
    } else {
      // freed before the pass, so that the pass can free each value when it has read it
      if (!torch::autograd::get_current_graph_task_keep_graph()) release(pass);
      found = by_kernels(*variant, std::move(values), grads);
    }
    size_t next = 0;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!pass.wanted.has(i)) continue;
      TORCH_CHECK(next < found.size(), name(), ": a backward pass returned too few gradients");
      at::Tensor& grad = found[next++].tensor;
      // a gradient that is a saved value itself has a history of its own; one that is given is passed on as it is
      bool has_history = grad.defined() && grad.requires_grad() && !differentiable;
      bool is_given = has_history && std::count(given.begin(), given.end(), grad.unsafeGetTensorImpl()) != 0;
      results[i] = has_history && !is_given ? grad.detach() : std::move(grad);
    }
    return results;
  } catch (const std::exception&) {
    persist_python_error();  // the thread may lose its Python state with the GIL
    throw;
  }
}

Slots call(PyObject* function, bool native, Slots values) {
  if (native) {
    Slots results;
    run_executable(function, std::move(values), results);
    return results;
  }
  std::vector<Ref> owned;
  std::vector<PyObject*> args;
  for (const Slot& value : values) {
    owned.push_back(value.empty() ? Ref(Py_NewRef(Py_None)) : checked(value.to_python()));
    args.push_back(owned.back().get());
  }
  values.clear();
  return from_python(checked(PyObject_Vectorcall(function, args.data(), args.size(), nullptr)).get());
}

}  // namespace jitpy
