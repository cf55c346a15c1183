// A Differentiable's NodeSpec in native form: see jitpy/runtime/autograd_node.py.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executable.h"

namespace jitpy {

// The module jitpy.runtime.autograd_node, borrowed.
PyObject* python_half();

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
  std::vector<int32_t> grad_outputs, grad_inputs, written;
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

}  // namespace jitpy
