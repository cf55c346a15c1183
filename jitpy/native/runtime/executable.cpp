// `Executable`: a Plan (jitpy/runtime/plan.py) as a native callable. `executable(*inputs) -> tuple`.
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/GradMode.h>

#include "executable.h"
#include "module.h"
#include "pool.h"
#include "steps.h"

namespace jitpy {
namespace {

// The plan's device as the current one, for programs that leave it alone: torch's own guard sets the former one again
// without looking, which takes as long as a tenth of a launch.
class OnDevice {
 public:
  explicit OnDevice(at::Device device) : impl_(c10::impl::getDeviceGuardImpl(device.type())) {
    former_ = impl_->getDevice();
    changed_ = former_ != device;
    if (changed_) impl_->setDevice(device);
  }
  ~OnDevice() {
    if (changed_) impl_->uncheckedSetDevice(former_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const c10::impl::DeviceGuardImplInterface* impl_;
  at::Device former_ = at::kCPU;
  bool changed_ = false;
};

// Steps in a row: those that a profiler sees as one event, a kernel and the memory that is taken for it, or any others.
struct Stretch {
  size_t begin, end;
  const std::string* name;  // nullptr: no event
};

struct Program {
  bool autograd = false;
  bool has_calls = false;  // eager operators or Python: warnings, and autograd to be switched off
  int32_t n_inputs = 0, n_slots = 0, n_sizes = 0, n_symbols = 0;
  std::vector<SymbolPlace> symbols;
  SizeFill size_fill;
  Size workspace;
  at::Device device = at::kCPU;
  std::vector<std::unique_ptr<Step>> steps;
  std::vector<Stretch> stretches;                // all steps, in order
  std::vector<std::vector<int32_t>> last_reads;  // per step: the inputs that no later step reads
  std::vector<int32_t> outputs;
  std::vector<int32_t> overwritten;  // inputs that steps use as memory of their own

  // `kept` receives the Python objects that the program points to.
  Program(PyObject* plan, Ref* kept) {
    PlanReader reader(plan);
    autograd = reader.autograd;
    n_inputs = reader.n_inputs;
    n_slots = reader.n_slots;
    n_sizes = reader.n_sizes;
    outputs = reader.slots(attribute(plan, "outputs").get());
    for (int32_t slot : outputs) TORCH_CHECK_VALUE(slot >= 0, "plan: an output is None");
    overwritten = reader.slots(attribute(plan, "overwritten").get());
    for (int32_t slot : overwritten)
      TORCH_CHECK_VALUE(0 <= slot && slot < n_inputs, "plan: `overwritten` lists inputs only, not ", slot);
    workspace = reader.size(attribute(plan, "workspace").get());
    device = reader.device;
    n_symbols = reader.n_symbols;
    size_fill = reader.size_fill(plan, "size_function", "size_entries");
    for_each(attribute(plan, "symbols").get(), "plan: symbols must be a sequence", [&](PyObject* binding) {
      symbols.push_back(reader.symbol_place(binding));
      const int32_t slot = symbols.back().slot;
      TORCH_CHECK_VALUE(slot < n_inputs, "plan: a symbol is read from slot ", slot, ", no input");
    });
    for_each(attribute(plan, "steps").get(), "plan: steps must be a sequence", [&](PyObject* step) {
      steps.push_back(reader.step(step));
      has_calls |= steps.back()->is_call();
    });
    find_stretches();
    for_each(reader.analysis("last_reads", plan).get(), "plan: last reads must be a sequence",
             [&](PyObject* read) { last_reads.push_back(reader.slots(read)); });
    *kept = reader.take_kept();
  }

  // `load(frame)` fills the input slots, `take(frame)` reads the outputs. `owned`: the inputs are the program's own, to
  // be dropped when nothing reads them any more.
  template <class Load, class Take>
  void run(const Load& load, const Take& take, bool owned = false) const {
    c10::SmallVector<Slot, 16> slots;
    slots.resize(n_slots);
    c10::SmallVector<int64_t, 32> sizes(n_sizes);
    c10::SmallVector<int64_t, 16> values(n_symbols);
    Frame frame;
    frame.slots = slots.data();
    frame.sizes = sizes.data();
    frame.symbols = values.data();
    frame.autograd = autograd;
    std::optional<c10::DeviceGuard> restored;
    std::optional<OnDevice> on_device;
    if (device.is_cuda()) {
      if (has_calls) {
        restored.emplace(device);
      } else {
        on_device.emplace(device);
      }
      frame.device = device.index();
    }
    load(frame);
    for (int32_t slot : overwritten) own(frame.slots[slot].tensor, owned);
    if (n_sizes != 0) fill_sizes(frame);
    size_t bytes = workspace_bytes(frame);
    Scratch scratch(device.is_cpu() ? bytes : 0);
    frame.workspace = scratch.data();
    c10::DataPtr device_scratch;
    if (!device.is_cpu() && bytes != 0) {
      device_scratch = device_memory(bytes);
      frame.workspace = static_cast<char*>(device_scratch.get());
    }
    // the graph holds autocast's casts as nodes already
    std::optional<c10::impl::ExcludeDispatchKeyGuard> recorded;
    if (has_calls) recorded.emplace(c10::autocast_dispatch_keyset);
    if (has_calls && !autograd) {
      // nothing needs a gradient here: operators skip autograd, but not the bookkeeping of views and versions
      at::AutoDispatchBelowAutograd below;
      run_steps(frame, owned);
    } else {
      run_steps(frame, owned);
    }
    take(frame);
  }

  // Puts a copy in place of a tensor that others may see.
  static void own(at::Tensor& tensor, bool given) {
    if (given && tensor.use_count() == 1 && tensor.storage().use_count() == 1) return;
    tensor = empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).copy_(tensor);
  }

  void load_inputs(Frame& frame, PyObject* const* args) const {
    for (int32_t i = 0; i < n_inputs; ++i) {
      PyObject* value = args[i];
      if (is_tensor(value)) {
        frame.slots[i].tensor = tensor_of(value);
      } else if (PyLong_Check(value) || PyFloat_Check(value) || PyComplex_Check(value)) {
        Py_INCREF(value);
        frame.slots[i].object = value;
      } else {
        throw_type_error("input " + std::to_string(i) + " must be a tensor or a number, not " +
                               Py_TYPE(value)->tp_name);
      }
    }
  }

  void fill_sizes(Frame& frame) const {
    for (size_t i = 0; i < symbols.size(); ++i)
      if (!symbols[i].read(frame, &frame.symbols[i])) {
        PyErr_SetString(PyExc_OverflowError, "Python int too large to convert to C long");
        throw_python_error();
      }
    size_fill.run(frame, n_symbols);
  }

  size_t workspace_bytes(const Frame& frame) const {
    int64_t bytes = workspace.get(frame.sizes);
    TORCH_CHECK(bytes >= 0, "plan: the workspace has ", bytes, " bytes");
    return bytes;
  }

  c10::DataPtr device_memory(size_t bytes) const {
    ReleaseGil released;
    return c10::GetAllocator(device.type())->allocate(bytes);
  }

  void run_steps(Frame& frame, bool owned) const {
    for (const Stretch& stretch : stretches) {
      if (stretch.name == nullptr) {
        run_stretch(stretch, frame, owned);
      } else {
        run_recorded(*stretch.name, [&] { run_stretch(stretch, frame, owned); });
      }
    }
  }

  void run_stretch(const Stretch& stretch, Frame& frame, bool owned) const {
    for (size_t i = stretch.begin; i < stretch.end; ++i) {
      steps[i]->run(frame);
      if (!owned) continue;
      for (int32_t slot : last_reads[i]) frame.slots[slot].clear();
    }
  }

  void find_stretches() {
    auto end_at = [this](size_t end, const std::string* name) {
      size_t begin = stretches.empty() ? 0 : stretches.back().end;
      if (begin != end) stretches.push_back({begin, end, name});
    };
    for (size_t i = 0; i < steps.size(); ++i) {
      if (steps[i]->recorded_name() == nullptr) continue;
      size_t first = i;
      size_t former = stretches.empty() ? 0 : stretches.back().end;
      while (first > former && steps[first - 1]->is_made_ahead()) --first;
      end_at(first, nullptr);
      end_at(i + 1, steps[i]->recorded_name());
    }
    end_at(steps.size(), nullptr);
  }

  Ref take_outputs(Frame& frame) const {
    Ref result = checked(PyTuple_New(outputs.size()));
    for (size_t i = 0; i < outputs.size(); ++i)
      PyTuple_SET_ITEM(result.get(), i, checked(frame.slots[outputs[i]].to_python()).release());
    return result;
  }
};

struct Executable {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* weak_references;
  PyObject* plan;
  PyObject* kept;
  Program* program;
};

// Warnings of operators become Python warnings.
template <class Load, class Take>
void run_program(const Program& program, const Load& load, const Take& take, bool owned = false) {
  if (!program.has_calls) {
    program.run(load, take, owned);
    return;
  }
  with_python_warnings([&] { program.run(load, take, owned); });
}

PyObject* executable_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
  const Program* program = reinterpret_cast<Executable*>(self)->program;
  Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count != program->n_inputs || (kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0)) {
    PyErr_Format(PyExc_TypeError, "this executable takes %d positional arguments, got %zd%s", program->n_inputs, count,
                 kwnames != nullptr && PyTuple_GET_SIZE(kwnames) != 0 ? " and keywords" : "");
    return nullptr;
  }
  try {
    Ref result;
    run_program(*program, [&](Frame& frame) { program->load_inputs(frame, args); },
                [&](Frame& frame) { result = program->take_outputs(frame); });
    return result.release();
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

PyObject* executable_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  PyObject* plan;
  static const char* names[] = {"plan", nullptr};
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Executable", const_cast<char**>(names), &plan)) return nullptr;
  try {
    Ref kept;
    auto program = std::make_unique<Program>(plan, &kept);
    auto* self = reinterpret_cast<Executable*>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->vectorcall = executable_call;
    Py_INCREF(plan);
    self->plan = plan;
    self->kept = kept.release();
    self->program = program.release();
    return reinterpret_cast<PyObject*>(self);
  } catch (const std::exception&) {
    set_python_exception();
    return nullptr;
  }
}

int executable_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Executable*>(object);
  Py_VISIT(self->plan);
  Py_VISIT(self->kept);
  return 0;
}

// Nothing is cleared here: the program needs its objects while anything may call it. Cycles through a plan are broken
// by the lists and functions in them.
void executable_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Executable*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weak_references != nullptr) PyObject_ClearWeakRefs(object);
  delete self->program;
  Py_CLEAR(self->kept);
  Py_CLEAR(self->plan);
  Py_TYPE(object)->tp_free(object);
}

PyObject* executable_steps_text(PyObject* self, PyObject*) {
  Ref module(PyImport_ImportModule("jitpy.runtime.executable"));
  if (!module) return nullptr;
  return PyObject_CallMethod(module.get(), "plan_text", "O", reinterpret_cast<Executable*>(self)->plan);
}

PyObject* executable_plan(PyObject* self, void*) {
  PyObject* plan = reinterpret_cast<Executable*>(self)->plan;
  Py_INCREF(plan);
  return plan;
}

PyMethodDef executable_methods[] = {
    {"steps_text", executable_steps_text, METH_NOARGS, "The program as readable text, one step per line."},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef executable_getset[] = {
    {"plan", executable_plan, nullptr, "The Plan this was made of.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyTypeObject executable_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* python_set_pool_limit(PyObject*, PyObject* value) {
  long long bytes = PyLong_AsLongLong(value);
  if (bytes == -1 && PyErr_Occurred()) return nullptr;
  if (bytes < 0) {
    PyErr_SetString(PyExc_ValueError, "set_pool_limit: bytes must not be negative");
    return nullptr;
  }
  pool_set_limit(bytes);
  Py_RETURN_NONE;
}

PyObject* python_pool_stats(PyObject*, PyObject*) {
  PoolStats stats = pool_stats();
  return Py_BuildValue("{s:n,s:n,s:n,s:n,s:n,s:K,s:K}", "limit", stats.limit, "cached_bytes", stats.cached_bytes,
                       "cached_blocks", stats.cached_blocks, "used_bytes", stats.used_bytes, "used_blocks",
                       stats.used_blocks, "hits", (unsigned long long)stats.hits, "misses",
                       (unsigned long long)stats.misses);
}

PyObject* python_empty_pool(PyObject*, PyObject*) {
  pool_empty();
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"set_pool_limit", python_set_pool_limit, METH_O, "Keep at most this many bytes of unused memory."},
    {"pool_stats", python_pool_stats, METH_NOARGS, "What the memory pool holds, as a dict."},
    {"empty_pool", python_empty_pool, METH_NOARGS, "Return all unused memory to the system."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool is_executable(PyObject* object) { return Py_TYPE(object) == &executable_type; }

void run_executable(PyObject* executable, Slots inputs, Slots& outputs) {
  const Program& program = *reinterpret_cast<Executable*>(executable)->program;
  if (static_cast<int32_t>(inputs.size()) != program.n_inputs)
    throw_type_error("this executable takes " + std::to_string(program.n_inputs) + " inputs, got " +
                           std::to_string(inputs.size()));
  run_program(
      program, [&](Frame& frame) { std::move(inputs.begin(), inputs.end(), frame.slots); },
      [&](Frame& frame) {
        for (int32_t slot : program.outputs) {
          const Slot& from = frame.slots[slot];
          TORCH_CHECK(!from.empty(), "an output was never computed");
          outputs.emplace_back().share(from);
        }
      },
      true);
}

}  // namespace jitpy

int init_executable(PyObject* module) {
  using namespace jitpy;
  PyTypeObject& type = executable_type;
  type.tp_name = "_jitpy_runtime.Executable";
  type.tp_doc = "Executable(plan): a plan as a callable, executable(*inputs) -> tuple.";
  type.tp_basicsize = sizeof(Executable);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_new = executable_new;
  type.tp_dealloc = executable_dealloc;
  type.tp_traverse = executable_traverse;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(Executable, vectorcall);
  type.tp_weaklistoffset = offsetof(Executable, weak_references);
  type.tp_methods = executable_methods;
  type.tp_getset = executable_getset;
  if (PyType_Ready(&type) < 0) return -1;
  if (PyModule_AddFunctions(module, module_methods) < 0) return -1;
  Py_INCREF(&type);
  if (PyModule_AddObject(module, "Executable", reinterpret_cast<PyObject*>(&type)) < 0) {
    Py_DECREF(&type);
    return -1;
  }
  return 0;
}
