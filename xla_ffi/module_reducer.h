// SPDX-License-Identifier: Apache-2.0
// The dedicated reducer's part of the Python module `smddp_jax._core`.
#pragma once

#include <nanobind/nanobind.h>

namespace smddp {

void DefineReducerServer(nanobind::module_& m);

}  // namespace smddp
