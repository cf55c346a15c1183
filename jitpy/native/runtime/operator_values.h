// Python objects as arguments and results of torch's operators (torch_api.cpp), converted as torch converts them.
#pragma once

#include <Python.h>

#include <optional>
#include <string>

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type_base.h>
#include <c10/util/FunctionRef.h>

namespace jitpy {

// `length`: of a list that one number may stand for.
c10::IValue to_ivalue(PyObject* object, const c10::TypePtr& type, std::optional<int32_t> length);

// A new reference.
PyObject* to_python(c10::IValue value);

// Runs `body`. Where `enabled`, `to_ivalue` takes numbers for tensors meanwhile.
void with_numbers_as_tensors(bool enabled, c10::function_ref<void()> body);

// Whether torch takes numbers for tensors in calls of the operator of this name.
bool takes_numbers_as_tensors(const std::string& operator_name);

}  // namespace jitpy
