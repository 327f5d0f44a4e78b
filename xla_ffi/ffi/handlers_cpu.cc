// SPDX-License-Identifier: Apache-2.0
#include "ffi/handlers_cpu.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ffi/collective_op.h"
#include "ffi/registry.h"
#include "xla/ffi/api/ffi.h"

namespace smddp {
namespace {

namespace ffi = xla::ffi;

// The one place where a Status becomes an XLA error; JAX raises it as JaxRuntimeError.
ffi::Error ToError(const Status& status) {
  const auto code = [&] {
    switch (status.code()) {
      case StatusCode::kInvalidArgument:
      case StatusCode::kMismatch:
        return ffi::ErrorCode::kInvalidArgument;
      case StatusCode::kPeerLost:
        return ffi::ErrorCode::kUnavailable;
      case StatusCode::kDeadline:
        return ffi::ErrorCode::kDeadlineExceeded;
      case StatusCode::kAborted:
        return ffi::ErrorCode::kAborted;
      default:
        return ffi::ErrorCode::kInternal;
    }
  }();
  return ffi::Error(
      code, "smddp_jax: " + std::string(Name(status.code())) + ": " + status.message());
}

std::optional<DType> ToDType(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::S8:
      return DType::kS8;
    case ffi::DataType::S16:
      return DType::kS16;
    case ffi::DataType::S32:
      return DType::kS32;
    case ffi::DataType::S64:
      return DType::kS64;
    case ffi::DataType::U8:
      return DType::kU8;
    case ffi::DataType::U16:
      return DType::kU16;
    case ffi::DataType::U32:
      return DType::kU32;
    case ffi::DataType::U64:
      return DType::kU64;
    case ffi::DataType::F16:
      return DType::kF16;
    case ffi::DataType::BF16:
      return DType::kBF16;
    case ffi::DataType::F32:
      return DType::kF32;
    case ffi::DataType::F64:
      return DType::kF64;
    case ffi::DataType::C64:
      return DType::kC64;
    case ffi::DataType::C128:
      return DType::kC128;
    default:
      return std::nullopt;
  }
}

std::string ShapeText(const ffi::AnyBuffer& buffer) {
  std::string text = "[";
  for (int64_t extent : buffer.dimensions()) {
    if (text.size() > 1) text += ",";
    text += std::to_string(extent);
  }
  return text + "]";
}

// What lowering.py never emits, but a program from elsewhere might.
Status CheckOperator(int64_t op, DType dtype) {
  const bool ordered = dtype != DType::kC64 && dtype != DType::kC128;
  if (op == static_cast<int64_t>(ReduceOp::kSum)) return Status();
  if (op > 0 && op <= static_cast<int64_t>(ReduceOp::kMin) && ordered) return Status();
  return Status(StatusCode::kInvalidArgument,
                "no reduction of number " + std::to_string(op) + " over " + Name(dtype));
}

Result<Tensors> Describe(ffi::RemainingArgs arguments, size_t tensors, int64_t op) {
  Tensors described;
  for (size_t i = 0; i < tensors; ++i) {
    const ffi::AnyBuffer buffer = *arguments.get<ffi::AnyBuffer>(i);
    const auto dtype = ToDType(buffer.element_type());
    if (!dtype || (i > 0 && *dtype != described.dtype)) {
      return Status(StatusCode::kInternal, "operands of an unknown or of unlike types");
    }
    SMDDP_RETURN_IF_ERROR(CheckOperator(op, *dtype));
    described.dtype = *dtype;
    described.counts.push_back(buffer.element_count());
    described.shapes.push_back(ShapeText(buffer));
  }
  return described;
}

ffi::ErrorOr<std::unique_ptr<CollectiveOp>> Instantiate(
    int64_t key, int64_t op, int64_t exported, ffi::Span<const int64_t> groups,
    ffi::Span<const int64_t> group_sizes, ffi::Span<const int64_t> devices,
    ffi::Span<const int64_t> processes, std::string_view label) {
  CollectiveAttributes attributes;
  attributes.key = key;
  attributes.op = op;
  attributes.exported = exported != 0;
  attributes.groups.assign(groups.begin(), groups.end());
  attributes.group_sizes.assign(group_sizes.begin(), group_sizes.end());
  attributes.devices.assign(devices.begin(), devices.end());
  attributes.processes.assign(processes.begin(), processes.end());
  attributes.label = std::string(label);
  return std::make_unique<CollectiveOp>(std::move(attributes));
}

// Who this device is in the op's groups: its global id, or for an exported program its
// partition id, which comes as the last operand.
int64_t MemberId(const CollectiveOp& op, int32_t device, ffi::RemainingArgs arguments) {
  if (!op.exported()) return device;
  const ffi::AnyBuffer last = *arguments.get<ffi::AnyBuffer>(arguments.size() - 1);
  return *static_cast<const uint32_t*>(last.untyped_data());
}

ffi::Future Execute(CollectiveOp* op, ffi::RunId run, int32_t device,
                    ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  ffi::Promise promise;
  ffi::Future future(promise);
  Registry& registry = Registry::Get();
  const Place place = registry.place();
  const size_t tensors = results.size();

  const int64_t member = MemberId(*op, device, arguments);
  auto group = op->GroupOf(member, place);
  auto signature =
      op->SignatureOf([&] { return Describe(arguments, tensors, op->reduction()); });
  for (const Status& status : {group.status(), signature.status()}) {
    if (status.ok()) continue;
    promise.SetError(ToError(status));
    return future;
  }

  Participant participant;
  for (size_t i = 0; i < tensors; ++i) {
    participant.inputs.push_back(arguments.get<ffi::AnyBuffer>(i)->untyped_data());
    participant.outputs.push_back((*results.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  participant.done = [promise](const Status& status) mutable {
    if (status.ok()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ToError(status));
    }
  };
  registry.engine().Submit(op->op(), run.run_id, member, *group, *signature,
                           std::move(participant));
  return future;
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate,
                       ffi::Ffi::BindInstantiate()
                           .Attr<int64_t>("key")
                           .Attr<int64_t>("op")
                           .Attr<int64_t>("exported")
                           .Attr<ffi::Span<const int64_t>>("groups")
                           .Attr<ffi::Span<const int64_t>>("group_sizes")
                           .Attr<ffi::Span<const int64_t>>("devices")
                           .Attr<ffi::Span<const int64_t>>("processes")
                           .Attr<std::string_view>("label"));

XLA_FFI_DEFINE_HANDLER(kExecute, Execute,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::State<CollectiveOp>>()
                           .Ctx<ffi::RunId>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

void* AllReduceInstantiate() { return reinterpret_cast<void*>(+kInstantiate); }
void* AllReduceExecute() { return reinterpret_cast<void*>(+kExecute); }
void* AllReduceStateId() { return &CollectiveOp::id; }

void* AllReduceStateInfo() {
  static auto info = ffi::MakeTypeInfo<CollectiveOp>();
  return &info;
}

}  // namespace smddp
