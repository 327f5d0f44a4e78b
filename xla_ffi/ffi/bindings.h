// SPDX-License-Identifier: Apache-2.0
// The handler that takes a custom call's attributes when XLA loads its program, and what
// those that run it get: the same on every platform, but for the types of the state and
// of where it runs.
//
// calls.py writes the attributes; they are alike for all targets. Any XLA thread.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "ffi/collective_op.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {

// Blocks of a reduce-scatter or an all-gather are as many in every group.
inline bool AlikeGroups(xla::ffi::Span<const int64_t> sizes) {
  return std::all_of(sizes.begin(), sizes.end(),
                     [&](int64_t size) { return size == *sizes.begin(); });
}

template <class Op, Collective kind>
xla::ffi::ErrorOr<std::unique_ptr<Op>> Instantiate(
    int64_t key, int64_t op, int64_t wire, int64_t exported,
    xla::ffi::Span<const int64_t> groups, xla::ffi::Span<const int64_t> group_sizes,
    xla::ffi::Span<const int64_t> devices, xla::ffi::Span<const int64_t> processes,
    std::string_view label) {
  if (kind != Collective::kAllReduce && !AlikeGroups(group_sizes)) {
    return xla::ffi::Unexpected(xla::ffi::Error(
        xla::ffi::ErrorCode::kInvalidArgument,
        "smddp_jax: " + std::string(label) + ": replica groups of unlike sizes"));
  }
  CollectiveAttributes attributes;
  attributes.key = key;
  attributes.request = {kind, op, wire};
  attributes.exported = exported != 0;
  attributes.groups.assign(groups.begin(), groups.end());
  attributes.group_sizes.assign(group_sizes.begin(), group_sizes.end());
  attributes.devices.assign(devices.begin(), devices.end());
  attributes.processes.assign(processes.begin(), processes.end());
  attributes.label = std::string(label);
  return std::make_unique<Op>(std::move(attributes));
}

inline auto Attributes() {
  return xla::ffi::Ffi::BindInstantiate()
      .Attr<int64_t>("key")
      .Attr<int64_t>("op")
      .Attr<int64_t>("wire")
      .Attr<int64_t>("exported")
      .Attr<xla::ffi::Span<const int64_t>>("groups")
      .Attr<xla::ffi::Span<const int64_t>>("group_sizes")
      .Attr<xla::ffi::Span<const int64_t>>("devices")
      .Attr<xla::ffi::Span<const int64_t>>("processes")
      .Attr<std::string_view>("label");
}

// `Where`: what a platform says of a run, before the device's ordinal.
template <class Op, class Where>
auto Execution() {
  return xla::ffi::Ffi::Bind()
      .Ctx<xla::ffi::State<Op>>()
      .template Ctx<Where>()
      .template Ctx<xla::ffi::DeviceOrdinal>()
      .RemainingArgs()
      .RemainingRets();
}

}  // namespace smddp
