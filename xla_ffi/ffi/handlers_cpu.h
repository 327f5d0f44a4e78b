// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of platform "cpu", as addresses to register.
//
// XLA's threads call them. The only floor that knows XLA; no header of XLA is needed to
// include this one.
#pragma once

#include <vector>

namespace smddp {

// A custom call target, the handler that takes its attributes when a program is loaded,
// and the one that runs it. calls.py writes the attributes; they are the same for all.
struct Target {
  const char* name;
  void* instantiate;
  void* execute;
};
std::vector<Target> Targets();

// The type of the state that instantiation makes: address of its id, and of its info.
inline constexpr char kCollectiveState[] = "smddp_collective_state";
void* CollectiveStateId();
void* CollectiveStateInfo();

}  // namespace smddp
