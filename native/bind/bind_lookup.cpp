#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <climits>
#include <utility>

#include "bind/bind.h"
#include "lookup/text_index.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace kvasir {
namespace {

// Ids of a list, tuple or array("i"), where they lie; of other sequences a copy.
class Tokens {
 public:
  explicit Tokens(nb::handle tokens) {
    if (PyObject_CheckBuffer(tokens.ptr())) {
      if (PyObject_GetBuffer(tokens.ptr(), &view_, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS))
        throw nb::python_error();
      if (view_.itemsize != 4 || !view_.format || view_.format[0] != 'i' || view_.ndim != 1) {
        PyBuffer_Release(&view_);
        throw nb::type_error("an array of tokens has 32-bit integers");
      }
      ids_ = static_cast<const int32_t*>(view_.buf);
      n_ = view_.len / 4;
      return;
    }
    items_ = nb::steal(PySequence_Fast(tokens.ptr(), "tokens are a sequence"));
    if (!items_.is_valid()) throw nb::python_error();
    is_list_ = PyList_Check(items_.ptr());
    n_ = PySequence_Size(items_.ptr());
  }
  Tokens(const Tokens&) = delete;
  Tokens& operator=(const Tokens&) = delete;
  ~Tokens() {
    if (ids_) PyBuffer_Release(&view_);
  }

  int64_t size() const { return n_; }
  int32_t operator()(int64_t i) const {
    if (ids_) return ids_[i];
    PyObject* item = is_list_ ? PyList_GetItem(items_.ptr(), i) : PyTuple_GetItem(items_.ptr(), i);
    if (!item) throw nb::python_error();
    const long id = PyLong_AsLong(item);
    if (id == -1 && PyErr_Occurred()) throw nb::python_error();
    if (id < INT_MIN || id > INT_MAX) throw nb::value_error("an id has 32 bits");
    return int32_t(id);
  }

 private:
  Py_buffer view_{};
  const int32_t* ids_ = nullptr;
  nb::object items_;
  bool is_list_ = false;
  int64_t n_ = 0;
};

int64_t read(TextIndex& index, nb::handle tokens, int64_t end, int64_t n_most) {
  const Tokens own(tokens);
  if (end < 0 || end > own.size() || n_most < 0) throw nb::value_error("tokens are read up to their end");
  return index.read(own, end, n_most);
}

std::pair<int64_t, int64_t> match(const TextIndex& index, nb::handle tokens, nb::handle tail,
                                  int64_t n_most) {
  const Tokens own(tokens), last(tail);
  const TextMatch found = index.match(own, own.size(), last, last.size(), n_most);
  return {found.end, found.length};
}

}  // namespace

void bind_lookup(nb::module_& m) {
  nb::class_<TextIndex>(m, "TextIndex")
      .def(nb::init<int64_t>(), "n_key"_a)
      .def("read", &read, "tokens"_a, "end"_a, "n_most"_a)
      .def("has_read", &TextIndex::has_read, "end"_a)
      .def("match", &match, "tokens"_a, "tail"_a, "n_most"_a)
      .def_prop_ro("bytes", &TextIndex::bytes);
}

}  // namespace kvasir
