// SPDX-License-Identifier: Apache-2.0
// What one custom call of a compiled program knows: its attributes, decoded once.
//
// XLA makes one per custom call when it loads an executable (the FFI "instantiate"
// stage) and shares it between the local devices; it lives as long as the executable.
// ForDevice may be called by any XLA thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "collective/call.h"
#include "collective/rendezvous.h"
#include "comm/group.h"
#include "ffi/operands.h"
#include "ffi/registry.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {

// The attributes of the custom call, as lowering.py writes them.
struct CollectiveAttributes {
  int64_t key = 0;
  Request request;
  bool exported = false;        // No devices known: groups hold logical partition ids.
  std::vector<int64_t> groups;  // All replica groups, end to end.
  std::vector<int64_t> group_sizes;
  std::vector<int64_t> devices;    // Global ids of the mesh, in logical order.
  std::vector<int64_t> processes;  // The process of each of them.
  std::string label;
};

class CollectiveOp {
 public:
  static xla::ffi::TypeId id;  // Assigned by XLA at registration.

  explicit CollectiveOp(CollectiveAttributes attributes);

  bool exported() const { return attributes_.exported; }
  OpInstance& op() { return op_; }

  // The group of `member`: a global device id, or a partition id if exported.
  Result<std::shared_ptr<const Group>> GroupOf(int64_t member, const Place& place);

  // The signature of the call, as `make(request)` gives it; asked once, since shapes are
  // static in a program.
  template <typename Make>
  Result<std::shared_ptr<const Signature>> SignatureFor(Make&& make) {
    const std::lock_guard lock(mutex_);
    if (!signature_) {
      auto made = make(attributes_.request);
      SMDDP_RETURN_IF_ERROR(made.status());
      signature_ = std::make_shared<const Signature>(std::move(*made));
    }
    return signature_;
  }

 private:
  std::vector<Member> MembersOf(std::span<const int64_t> group, const Place& place) const;

  const CollectiveAttributes attributes_;
  OpInstance op_;
  std::mutex mutex_;
  std::unordered_map<int64_t, std::shared_ptr<const Group>> groups_;
  std::shared_ptr<const Signature> signature_;
};

}  // namespace smddp
