// The node of autograd's graph that one call of a compiled graph makes: see jitpy/runtime/autograd_node.py (NodeSpec).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "executable.h"

namespace jitpy {

using NodePtr = decltype(torch::autograd::Edge::function);  // torch counted nodes by shared_ptr once

// A set of small numbers.
class Bits {
 public:
  explicit Bits(size_t count = 0) : words_((count + 63) / 64) {}
  explicit Bits(PyObject* mask);  // a Python int that is not negative

  void set(size_t bit) { words_[bit / 64] |= uint64_t{1} << (bit % 64); }
  bool has(size_t bit) const { return bit / 64 < words_.size() && (words_[bit / 64] >> (bit % 64) & 1); }
  bool empty() const;
  bool meets(const Bits& other) const;
  Bits& operator|=(const Bits& other);
  Bits& operator&=(const Bits& other);
  bool operator==(const Bits& other) const { return words_ == other.words_; }
  Ref to_python() const;

 private:
  c10::SmallVector<uint64_t, 2> words_;
};

enum class Kind { input, data, output, extra };

struct Place {
  Kind kind;
  int32_t index;
};

// A tensor that eager saves, and how eager's error names it (empty: as it is at the call).
struct WatchedPlace {
  Place place;
  std::string text;
};

// A NodeSpec in native form, and the backward passes made so far.
struct Spec {
  // A backward pass: a BackwardPass in native form, or any Python callable.
  struct Variant {
    Bits defined, wanted;
    bool deterministic;  // whether results had to repeat when it was made
    Ref object, run;
    bool native = false;  // `run` is an Executable
    std::vector<std::optional<std::vector<int64_t>>> layouts;
    std::vector<bool> present;  // empty: all are

    void read(Ref backward);
  };

  explicit Spec(PyObject* spec);

  PyObject* object;  // the NodeSpec, owned by the Differentiable
  int32_t n_inputs, n_outputs;
  std::vector<Place> saved;
  std::vector<WatchedPlace> watched;
  std::vector<int32_t> grad_outputs, grad_inputs;
  std::vector<int32_t> kept;
  std::vector<std::pair<int32_t, int32_t>> copies;  // (position, extra)
  bool has_eager, has_linear, random, changes;
  std::string name;
  std::vector<std::unique_ptr<Variant>> variants;  // under the GIL

  Ref eager;                    // what NodeSpec.eager made, once it did
  Ref generators;               // those of the program's own that the graph draws from
  int differentiable_passes = 0;  // until there is one that is not; then -1

  // Paths in native form. Read when a pass over parts comes.
  std::vector<Bits> under, over;
  std::vector<std::vector<Bits>> needs;
  std::vector<Bits> savers, watchers;
  bool paths_known = false;
  void read_paths();

  // The backward pass for these masks, made now where need be.
  const Variant& variant(const Bits& defined, const Bits& wanted);
  PyObject* eager_run();
  // Whether it is cheaper to call the eager ops from the start.
  bool prefers_eager() const { return differentiable_passes >= kPatience && !changes; }

 private:
  static constexpr int kPatience = 4;
};

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
  // What torch calls before it takes a long chain of nodes apart without recursion: a node must then hold no tensors,
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

  // What a pass is about: from which outputs to which inputs.
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
