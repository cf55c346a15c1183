// The state of one call of an executable: numbered slots, the size table, scratch memory.
#pragma once

#include <Python.h>

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/TensorBody.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "ref.h"
#include "torch_api.h"

namespace jitpy {

// A slot is empty, or holds a tensor, or any other Python object (mostly a number).
struct Slot {
  at::Tensor tensor;
  PyObject* object = nullptr;  // owned
  union {                      // the number in `object` as kernels read it; filled by number_address
    int64_t integer;
    double real;
  };

  Slot() : integer(0) {}
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;
  Slot(Slot&& other) noexcept : tensor(std::move(other.tensor)), object(other.object), integer(other.integer) {
    other.object = nullptr;
  }
  Slot& operator=(Slot&& other) noexcept {
    std::swap(tensor, other.tensor);
    std::swap(object, other.object);
    integer = other.integer;
    return *this;
  }
  ~Slot() { Py_XDECREF(object); }

  bool empty() const { return !tensor.defined() && object == nullptr; }

  void clear() {
    tensor.reset();
    Py_CLEAR(object);
  }

  void set(at::Tensor value) {
    Py_CLEAR(object);
    tensor = std::move(value);
  }

  // For an empty slot: the same value.
  void share(const Slot& other) {
    tensor = other.tensor;
    Py_XINCREF(other.object);
    object = other.object;
  }

  // Takes over the reference.
  void set_object(PyObject* value) {
    tensor.reset();
    Py_XSETREF(object, value);
  }

  // A new reference to what the slot holds.
  PyObject* to_python() const {
    if (tensor.defined()) return jitpy::to_python(tensor);
    TORCH_CHECK(object != nullptr, "a step reads an empty slot");
    Py_INCREF(object);
    return object;
  }

  // From a new or borrowed reference; the caller keeps its own.
  void set_from_python(PyObject* value) {
    if (is_tensor(value)) {
      set(tensor_of(value));
    } else {
      Py_INCREF(value);
      set_object(value);
    }
  }

  // Where a kernel finds the number: an int64_t for int and bool, a double for float.
  void* number_address() {
    if (PyFloat_Check(object)) {
      real = PyFloat_AS_DOUBLE(object);
    } else if (PyLong_Check(object)) {
      integer = PyLong_AsLongLong(object);
      if (integer == -1 && PyErr_Occurred()) throw_python_error();
    } else {
      throw_type_error(std::string("a kernel takes tensors, int and float, not ") + Py_TYPE(object)->tp_name);
    }
    return &integer;
  }
};

// An int of the plan: a constant, or an entry of the size table.
struct Size {
  int64_t value = 0;
  int32_t entry = -1;

  bool is_static() const { return entry < 0; }
  int64_t get(const int64_t* table) const { return entry < 0 ? value : table[entry]; }
};

using Sizes = std::vector<Size>;
using Ints = c10::SmallVector<int64_t, 8>;

inline bool is_static(const Sizes& sizes) {
  for (const Size& size : sizes)
    if (!size.is_static()) return false;
  return true;
}

inline Ints resolve(const Sizes& sizes, const int64_t* table) {
  Ints result;
  result.reserve(sizes.size());
  for (const Size& size : sizes) result.push_back(size.get(table));
  return result;
}

// The arguments and results of operators (calls.cpp).
struct OperatorStack;
struct FreeOperatorStack {
  void operator()(OperatorStack* stack) const;
};

// torch's current stream of a CUDA device, as a cudaStream_t (cuda_launch.cpp). With the GIL held.
void* current_cuda_stream(int device);

// The state of one call.
struct Frame {
  Slot* slots = nullptr;
  int64_t* sizes = nullptr;
  int64_t* symbols = nullptr;  // what the size table is computed from
  char* workspace = nullptr;
  bool autograd = false;
  int device = -1;  // the CUDA device of the plan, -1: none
  // what the caller had, before autograd was switched off
  c10::impl::LocalDispatchKeySet caller_keys = c10::impl::tls_local_dispatch_key_set();
  std::unique_ptr<OperatorStack, FreeOperatorStack> stack;  // made by the first operator call, for all of the frame

  // The stream that launches go to: that which is current at the first of them.
  void* stream() {
    if (!stream_known_) {
      stream_ = current_cuda_stream(device);
      stream_known_ = true;
    }
    return stream_;
  }

 private:
  void* stream_ = nullptr;
  bool stream_known_ = false;
};

// Lets other Python threads run. Unlike pybind's it needs no further headers.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { PyEval_RestoreThread(state_); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

 private:
  PyThreadState* state_;
};

// For C API calls that return a new reference: throws where they failed.
inline Ref checked(PyObject* object) {
  if (object == nullptr) throw_python_error();
  return Ref(object);
}

inline Ref attribute(PyObject* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

// The int that a Python int is. Throws where it does not fit.
inline int64_t integer(PyObject* object) {
  int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) throw_python_error();
  return value;
}

// Calls `body` with each item of a sequence, borrowed. `what` is the text of the TypeError where it is none.
template <class Body>
void for_each(PyObject* sequence, const char* what, const Body& body) {
  Ref items = checked(PySequence_Fast(sequence, what));
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) body(PySequence_Fast_GET_ITEM(items.get(), i));
}

}  // namespace jitpy
