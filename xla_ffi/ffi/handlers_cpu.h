// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of platform "cpu", as addresses to register.
//
// XLA's threads call them. The only floor that knows XLA; no header of XLA is needed to
// include this one.
#pragma once

#include <vector>

namespace smddp {

// A custom call target and the handler that takes its attributes when a program is
// loaded. lowering.py writes them; they are the same for all targets.
struct Target {
  const char* name;
  void* instantiate;
};
std::vector<Target> Targets();

// Runs a call of any target.
void* CollectiveExecute();

// The type of the state that instantiation makes: address of its id, and of its info.
inline constexpr char kCollectiveState[] = "smddp_collective_state";
void* CollectiveStateId();
void* CollectiveStateInfo();

}  // namespace smddp
