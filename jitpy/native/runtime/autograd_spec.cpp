#include "autograd_spec.h"

#include <algorithm>
#include <cstdio>

#include <ATen/Context.h>

namespace jitpy {

PyObject* python_half() {
  static PyObject* module = checked(PyImport_ImportModule("jitpy.runtime.autograd_node")).release();
  return module;
}

Bits::Bits(PyObject* mask) {
  Ref text = checked(PyNumber_ToBase(mask, 16));
  const char* digits = PyUnicode_AsUTF8(text.get());
  if (digits == nullptr) throw_python_error();
  TORCH_CHECK_VALUE(digits[0] != '-', "NodeSpec: a mask is negative");
  size_t count = std::char_traits<char>::length(digits + 2);
  words_.resize((count + 15) / 16);
  for (size_t i = 0; i < count; ++i) {
    char digit = digits[1 + count - i];
    uint64_t value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    words_[i / 16] |= value << (i % 16 * 4);
  }
}

bool Bits::empty() const {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
}

bool Bits::meets(const Bits& other) const {
  for (size_t i = 0; i < std::min(words_.size(), other.words_.size()); ++i)
    if (words_[i] & other.words_[i]) return true;
  return false;
}

Bits& Bits::operator|=(const Bits& other) {
  if (words_.size() < other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

Bits& Bits::operator&=(const Bits& other) {
  if (words_.size() > other.words_.size()) words_.resize(other.words_.size());
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  return *this;
}

Ref Bits::to_python() const {
  std::string digits = "0";
  for (size_t i = words_.size(); i-- > 0;) {
    char word[17];
    snprintf(word, sizeof(word), "%016llx", static_cast<unsigned long long>(words_[i]));
    digits += word;
  }
  return checked(PyLong_FromString(digits.c_str(), nullptr, 16));
}

namespace {

std::vector<int32_t> numbers(PyObject* owner, const char* name) {
  std::vector<int32_t> result;
  for_each(attribute(owner, name).get(), name,
           [&](PyObject* item) { result.push_back(static_cast<int32_t>(integer(item))); });
  return result;
}

std::vector<Place> places(PyObject* owner, const char* name) {
  std::vector<Place> result;
  for_each(attribute(owner, name).get(), name, [&](PyObject* item) {
    const char* kind;
    int index;
    if (!PyArg_ParseTuple(item, "si", &kind, &index)) throw_python_error();
    Kind found = kind[0] == 'i' ? Kind::input : kind[0] == 'd' ? Kind::data
                 : kind[0] == 'o' ? Kind::output : Kind::extra;
    result.push_back({found, index});
  });
  return result;
}

std::vector<WatchedPlace> watched_places(PyObject* owner) {
  std::vector<WatchedPlace> result;
  for_each(attribute(owner, "watched").get(), "watched", [&](PyObject* item) {
    const char *kind, *text;
    int index;
    if (!PyArg_ParseTuple(item, "sis", &kind, &index, &text)) throw_python_error();
    result.push_back({{kind[0] == 'i' ? Kind::input : Kind::output, index}, text});
  });
  return result;
}

std::vector<Bits> masks(PyObject* sequence) {
  std::vector<Bits> result;
  for_each(sequence, "masks must be a sequence", [&](PyObject* item) { result.emplace_back(item); });
  return result;
}

}  // namespace

Spec::Spec(PyObject* spec)
    : object(spec), n_inputs(0), n_outputs(0), saved(places(spec, "saved")), watched(watched_places(spec)),
      grad_outputs(numbers(spec, "grad_outputs")), grad_inputs(numbers(spec, "grad_inputs")),
      written(numbers(spec, "written")) {
  n_inputs = static_cast<int32_t>(integer(attribute(spec, "n_inputs").get()));
  n_outputs = static_cast<int32_t>(integer(attribute(spec, "n_outputs").get()));
  Ref text = attribute(spec, "name");
  const char* chars = PyUnicode_AsUTF8(text.get());
  if (chars == nullptr) throw_python_error();
  name = chars;
  kept = numbers(spec, "kept");
  for_each(attribute(spec, "copies").get(), "NodeSpec: copies must be a sequence", [&](PyObject* item) {
    int position, extra;
    if (!PyArg_ParseTuple(item, "ii", &position, &extra)) throw_python_error();
    copies.emplace_back(position, extra);
  });
  has_eager = attribute(spec, "eager").get() != Py_None;
  has_linear = attribute(spec, "linear").get() != Py_None;
  random = PyObject_IsTrue(attribute(spec, "random").get()) == 1;
  generators = attribute(spec, "generators");
  changes = PyObject_IsTrue(attribute(spec, "changes").get()) == 1;
}

void Spec::read_paths() {
  if (paths_known) return;
  Ref make = attribute(object, "paths");
  if (make.get() == Py_None) {  // everything hangs together
    Bits one(1), all(grad_inputs.size());
    if (!saved.empty()) one.set(0);
    for (size_t i = 0; i < grad_inputs.size(); ++i) all.set(i);
    under.assign(grad_outputs.size(), one);
    over.assign(grad_inputs.size(), one);
    needs.assign(saved.size(), std::vector<Bits>(grad_outputs.size(), all));
    savers.assign(saved.size(), one);
    watchers.assign(watched.size(), one);
  } else {
    Ref paths = checked(PyObject_CallNoArgs(make.get()));
    std::vector<Bits> found_under = masks(attribute(paths.get(), "under").get()),
                      found_over = masks(attribute(paths.get(), "over").get()),
                     found_savers = masks(attribute(paths.get(), "savers").get()),
                     found_watchers = masks(attribute(paths.get(), "watched").get());
    std::vector<std::vector<Bits>> found_needs;
    for_each(attribute(paths.get(), "needs").get(), "Paths: needs must be a sequence",
             [&](PyObject* item) { found_needs.push_back(masks(item)); });
    bool fits = found_under.size() == grad_outputs.size() && found_over.size() == grad_inputs.size() &&
                found_needs.size() == saved.size() && found_savers.size() == saved.size() &&
                found_watchers.size() == watched.size();
    for (const auto& of_outputs : found_needs) fits &= of_outputs.size() == grad_outputs.size();
    TORCH_CHECK_VALUE(fits, "Paths: one mask per output and per input with gradients, one tuple and one mask per saved "
                            "value, and one mask per watched tensor");
    under = std::move(found_under);
    over = std::move(found_over);
    needs = std::move(found_needs);
    savers = std::move(found_savers);
    watchers = std::move(found_watchers);
  }
  paths_known = true;
}

const Spec::Variant& Spec::variant(const Bits& defined, const Bits& wanted) {
  bool deterministic = at::globalContext().deterministicAlgorithms();
  auto find = [&]() -> const Variant* {
    for (const auto& found : variants)
      if (found->defined == defined && found->wanted == wanted && found->deterministic == deterministic)
        return found.get();
    return nullptr;
  };
  if (const Variant* found = find()) return *found;
  Ref make = attribute(object, "backward"), first = defined.to_python(), second = wanted.to_python();
  Ref run = checked(PyObject_CallFunctionObjArgs(make.get(), first.get(), second.get(), nullptr));
  if (const Variant* found = find()) return *found;  // another thread was faster
  auto variant = std::make_unique<Variant>(Variant{defined, wanted, deterministic});
  variant->read(std::move(run));
  variants.push_back(std::move(variant));
  return *variants.back();
}

PyObject* Spec::eager_run() {
  if (!eager) {
    Ref made = checked(PyObject_CallOneArg(attribute(python_half(), "eager_of").get(), object));
    if (!eager) eager = std::move(made);
  }
  return eager.get();
}

void Spec::Variant::read(Ref backward) {
  Ref type = attribute(python_half(), "BackwardPass");
  if (reinterpret_cast<PyObject*>(Py_TYPE(backward.get())) == type.get()) {
    run = attribute(backward.get(), "run");
    for_each(attribute(backward.get(), "layouts").get(), "layouts", [&](PyObject* item) {
      layouts.emplace_back();
      if (item == Py_None) return;
      layouts.back().emplace();
      for_each(item, "a layout is a tuple of strides",
               [&](PyObject* stride) { layouts.back()->push_back(integer(stride)); });
    });
    Ref there = attribute(backward.get(), "present");
    if (there.get() != Py_None)
      for_each(there.get(), "present", [&](PyObject* item) { present.push_back(item == Py_True); });
  } else {
    run = Ref(Py_NewRef(backward.get()));
  }
  native = is_executable(run.get());
  object = std::move(backward);
}

}  // namespace jitpy
