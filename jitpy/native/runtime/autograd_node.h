// The node of autograd's graph that one call of a compiled graph makes: see jitpy/runtime/autograd_node.py (NodeSpec).
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "autograd_spec.h"

namespace jitpy {

using NodePtr = decltype(torch::autograd::Edge::function);  // torch counted nodes by shared_ptr once

// Nodes that hang below one another in a long chain must not be deleted recursively: torch has its own way.
// (A template, so that only the branch of this torch's pointer is looked at.)
template <class T, class Ptr = NodePtr>
Ptr own(T* node) {
  if constexpr (std::is_same_v<Ptr, std::shared_ptr<torch::autograd::Node>>) {
    return Ptr(node, [](auto* last) { deleteNode(last); });
  } else {
    return Ptr::unsafe_steal_from_new(node);
  }
}

// A value kept for the backward pass: a tensor, or a Python number.
struct Saved {
  torch::autograd::SavedVariable tensor;
  PyObject* number = nullptr;  // owned; released under the GIL
  bool freed = false;
  uint64_t layout = 0;  // of a leaf, whose `.data` may be replaced: what kernels were compiled for

  Saved() = default;
  Saved(Saved&& other) noexcept
      : tensor(std::move(other.tensor)), number(other.number), freed(other.freed), layout(other.layout) {
    other.number = nullptr;
  }
};

// Calls a function on values: natively, where it is an Executable, else as Python.
Slots call(PyObject* function, bool native, Slots values);

// The inputs of a call, for a pass that must be differentiable. Changing one is no error where no such pass follows.
struct KeptInputs {
  Slots values;
  std::vector<uint32_t> versions;
  Ref random_state;
};

// Passes gradients on. One stands before each of several results: the hooks of a result run when a gradient arrives at
// it, and not whenever one arrives at the graph. And one before each of several leaves with hooks, for their order.
class PassingNode final : public torch::autograd::Node {
 public:
  explicit PassingNode(torch::autograd::Edge&& graph) : Node({std::move(graph)}) {}

  std::string name() const override { return next_edge(0).function->name(); }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override { return std::move(grads); }
};

class JitNode final : public torch::autograd::Node {
 public:
  // `owner`: the Differentiable.
  JitNode(PyObject* owner, Spec* spec, torch::autograd::edge_list&& edges);
  ~JitNode() override;

  std::string name() const override { return spec_->name; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override;
  // Torch calls it before it takes a long chain of nodes apart without recursion: a node must then hold no tensors,
  // whose histories are the nodes below. (Newer versions of torch call the one, older ones the other.)
  void release_resources();
  void release_variables() override;

  // Keeps a value. `is_output`: of this node.
  void save(const Slot& value, bool is_output);
  void watch(const at::Tensor& tensor, const std::string& text);
  KeptInputs kept;

 private:
  struct Watched {
    c10::VariableVersion version;
    uint32_t expected;
    std::string text;  // empty: that of the spec
  };

  // The scope of a pass: from which outputs to which inputs.
  struct Pass {
    Bits defined, wanted;
    bool full = true;  // from all to all
    Bits running;      // the nodes of eager's between them, where that is known
  };

  Pass pass(const torch::autograd::variable_list& grads) const;
  void refuse_second_run(Pass& pass) const;
  void refuse_changes(const Pass& pass) const;
  void release(const Pass& pass);
  void drop_all();
  Slots unpack(const Pass& pass);
  Slots by_kernels(const Spec::Variant& variant, Slots values, torch::autograd::variable_list& grads) const;
  Slots by_linear(const Slots& values, const torch::autograd::variable_list& grads, const Pass& pass) const;
  Slots by_eager(const Slots& inputs, const torch::autograd::variable_list& grads, const Bits& wanted) const;

  PyObject* owner_;
  Spec* spec_;
  std::vector<Saved> saved_;
  std::vector<Watched> watched_;
  Bits ran_;               // nodes of eager's that have run and freed what they had
  bool all_ran_ = false;
  bool any_ran_ = false;
};

}  // namespace jitpy
