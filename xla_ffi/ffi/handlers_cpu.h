// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of platform "cpu", as addresses to register.
//
// XLA's threads call them. The only floor that knows XLA; no header of XLA is needed to
// include this one.
#pragma once

namespace smddp {

// Custom call target "smddp_all_reduce". lowering.py writes its attributes.
inline constexpr char kAllReduceTarget[] = "smddp_all_reduce";
void* AllReduceInstantiate();
void* AllReduceExecute();

// The type of the state that instantiation makes: address of its id, and of its info.
inline constexpr char kAllReduceState[] = "smddp_all_reduce_state";
void* AllReduceStateId();
void* AllReduceStateInfo();

}  // namespace smddp
