// The Python module. Each bind_*.cpp adds the bindings of one part; only these files include nanobind.
#include "bind/bind.h"

NB_MODULE(_native, m) {
  m.doc() = "Kvasir's native core";
  nanobind::set_leak_warnings(false);  // a script may keep its LLM until the interpreter ends
  kvasir::bind_levels(m);
  kvasir::bind_pool(m);
  kvasir::bind_tables(m);
  kvasir::bind_sampler(m);
  kvasir::bind_fills(m);
  kvasir::bind_experts(m);
  kvasir::bind_kernels(m);
  kvasir::bind_measure(m);
  kvasir::bind_program(m);
  kvasir::bind_checksum(m);
  kvasir::bind_lookup(m);
}
