// The facts of a tensor and of torch's modes that guards read, without torch headers for the includer.
#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>
#include <vector>

// One size or stride of a guarded tensor.
struct DimCheck {
  enum Kind : uint8_t {
    kExact,  // equal to `value`
    kBind,   // low <= found <= high; goes to symbol slot `slot`
    kSame,   // equal to symbol slot `slot`
    kStore,  // goes to slot `slot`, compared with an expression later
  };
  Kind kind;
  int slot;
  int64_t value;
  int64_t low, high;
};

// A tensor's facts as a guard wants them. dtype, device and key set in the encoding of `parse_tensor_check`.
struct TensorCheck {
  uint64_t dispatch_keys;
  int16_t dtype;
  int16_t device_type;
  int16_t device_index;
  bool requires_grad;
  bool is_inference;
  bool all_exact;                       // only `sizes` and `strides` matter, no symbol
  std::vector<int64_t> sizes, strides;  // the exact values (0 where a symbol stands)
  std::vector<DimCheck> dims;           // sizes, then strides
};

// Torch's process- and thread-wide modes.
struct StateCheck {
  struct Autocast {
    int16_t device_type;
    int16_t dtype;
    bool enabled;
  };
  bool grad_enabled;
  bool inference_mode;
  bool deterministic;
  bool asks_classes;  // whether classes of tensors are asked for __torch_function__
  bool forward_ad;  // whether a level of forward-mode gradients is open: tensors may have tangents then
  int16_t default_dtype;
  int64_t function_modes, dispatch_modes;
  std::vector<Autocast> autocast;
};

// Which kernels scaled_dot_product_attention may be: a bit each, in the order of `guard_checks.ATTENTION_KERNELS`.
struct AttentionCheck {
  uint8_t asked = 0;
  uint8_t allowed = 0;
};

// Fill in dtype and device from Python objects (borrowed). 0, or -1 with TypeError set.
int parse_dtype(PyObject* dtype, int16_t* out);
int parse_device(PyObject* device, int16_t* type, int16_t* index);
int parse_device_type(const char* name, int16_t* type);

// Whether `cls` (borrowed) is torch's tensor base class or derived from it. 1, 0, or -1 with an exception set.
int is_tensor_class(PyObject* cls);

// Whether the tensor (borrowed; its type is known to derive from the tensor base class) passes; binds symbols.
// 1, 0, or -1 with an exception set that is no `Exception`.
int tensor_passes(PyObject* tensor, const TensorCheck& check, int64_t* symbols);

// The same facts of a plain tensor with exact sizes, for one quick pass over many.
struct TensorStamp {
  PyObject* object;  // borrowed
  PyTypeObject* type;
  const void *impl, *autograd;  // where its parts were: hints for the cache
  uint64_t dispatch_keys;
  int numbers;  // where in an array of numbers its sizes are; its strides follow
  int16_t ndim, dtype, device_type, device_index;
  bool requires_grad, is_inference;
};

// Fill in the stamp of a tensor that passes the check. False where it is not plain (reading its facts may run Python).
bool make_tensor_stamp(PyObject* tensor, const TensorCheck& check, int numbers, TensorStamp* out);
// Let the stamp be about another tensor (or the same again) with the same facts. False where it is not plain.
bool restamp_tensor(PyObject* tensor, TensorStamp* stamp);
// The first stamp from `begin` on whose tensor has other facts now; `end` where there is none.
size_t differing_tensor(const TensorStamp* stamps, const int64_t* numbers, size_t begin, size_t end);

// Turns torch-function overrides and modes off in this thread while it lives: getters of tensors are torch's own.
class NoTorchFunction {
 public:
  NoTorchFunction();
  ~NoTorchFunction();
  NoTorchFunction(const NoTorchFunction&) = delete;

 private:
  int before_;
};

// Whether the process's modes are as recorded.
bool state_passes(const StateCheck& check);
bool attention_passes(const AttentionCheck& check);

// Whether the storages of two tensors (borrowed) share bytes; also true where a storage cannot be read.
bool storages_overlap(PyObject* a, PyObject* b);
