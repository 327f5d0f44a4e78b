// SPDX-License-Identifier: Apache-2.0
// The Python module `smddp_jax._cuda`: the GPUs of this process, for `_core`, and what to
// say where there are none. Loads without a driver. Loaded by smddp_jax/_native.py only.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "device/cuda_gpus.h"

namespace nb = nanobind;

NB_MODULE(_cuda, m) {
  using smddp::device::CudaGpus;
  using smddp::device::Gpus;

  m.def(
      "gpus",
      [] {
        Gpus* const gpus = &CudaGpus::OfThisProcess();
        return nb::capsule(gpus, "smddp.device.Gpus");
      },
      nb::sig("def gpus() -> object"),
      "The GPUs of this process, for `_core.use_gpus`; does not look for them yet.");
  m.def(
      "problem",
      [] {
        const nb::gil_scoped_release no_gil;
        return CudaGpus::OfThisProcess().Problem().message();
      },
      "Why no GPU can be used here, or an empty text. Makes no context on a GPU.");
  m.def(
      "count",
      [] {
        const nb::gil_scoped_release no_gil;
        return CudaGpus::OfThisProcess().count();
      },
      "How many GPUs this process sees; 0 where there is no driver.");
  m.def(
      "describe",
      [] {
        const nb::gil_scoped_release no_gil;
        return CudaGpus::OfThisProcess().Describe();
      },
      "Versions of CUDA, and the GPUs, on one line.");
}
