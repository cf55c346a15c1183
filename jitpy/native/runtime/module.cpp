// Entry point of the extension module `_jitpy_runtime`: guards, dispatch and the plan executor.
#include "module.h"

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_jitpy_runtime", "Native guards, dispatch and plan execution of jitpy.", -1, nullptr,
    nullptr, nullptr, nullptr, nullptr,
};

PyMODINIT_FUNC PyInit__jitpy_runtime() {
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  if (init_guards(module) < 0 || init_switches(module) < 0 || init_dispatch(module) < 0 ||
      init_hand_over(module) < 0 || init_executable(module) < 0 || init_differentiable(module) < 0 || init_launch(module) < 0 ||
      init_random(module) < 0) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
