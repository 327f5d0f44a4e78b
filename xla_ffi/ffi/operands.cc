// SPDX-License-Identifier: Apache-2.0
#include "ffi/operands.h"

#include <sstream>
#include <string>
#include <vector>

namespace smddp {
namespace {

namespace ffi = xla::ffi;

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

// "float32[2,3]"; types that we don't reduce have XLA's names.
std::string TypeText(const ffi::AnyBuffer& buffer) {
  std::ostringstream text;
  if (const auto dtype = ToDType(buffer.element_type())) {
    text << Name(*dtype);
  } else {
    text << buffer.element_type();
  }
  return text.str() + ShapeText(buffer);
}

ffi::AnyBuffer Argument(ffi::RemainingArgs arguments, size_t index) {
  return *arguments.get<ffi::AnyBuffer>(index);
}

ffi::AnyBuffer ResultBuffer(ffi::RemainingRets results, size_t index) {
  return **results.get<ffi::AnyBuffer>(index);
}

Status CheckOperator(int64_t op, DType dtype) {
  const bool ordered = dtype != DType::kC64 && dtype != DType::kC128;
  if (op == static_cast<int64_t>(ReduceOp::kSum)) return Status();
  if (op > 0 && op <= static_cast<int64_t>(ReduceOp::kMin) && ordered) return Status();
  return Status(StatusCode::kInvalidArgument,
                "no reduction of number " + std::to_string(op) + " over " + Name(dtype));
}

// Sums of float32 may travel as a 16-bit float, those of a 16-bit float as themselves.
Result<std::optional<DType>> WireOf(const Request& request, DType dtype) {
  if (request.wire < 0) return std::optional<DType>();
  for (DType wire : {DType::kF16, DType::kBF16}) {
    const bool fits = dtype == DType::kF32 || dtype == wire;
    const bool sum = request.op == static_cast<int64_t>(ReduceOp::kSum);
    if (request.wire == static_cast<int64_t>(wire) && fits && sum) {
      return std::optional<DType>(wire);
    }
  }
  return Status(StatusCode::kInvalidArgument,
                std::string("contributions of ") + Name(dtype) +
                    " cannot travel as type number " + std::to_string(request.wire));
}

Status NotBlocks(const ffi::AnyBuffer& argument, const ffi::AnyBuffer& result,
                 size_t members) {
  return Status(StatusCode::kInvalidArgument,
                "argument " + TypeText(argument) + " and result " + TypeText(result) +
                    " do not fit a group of " + std::to_string(members) + " devices");
}

Result<Signature> AllReduceOf(const Request& request, ffi::RemainingArgs arguments,
                              size_t tensors) {
  std::optional<DType> dtype;
  std::vector<size_t> counts;
  std::vector<std::string> shapes;
  for (size_t i = 0; i < tensors; ++i) {
    const ffi::AnyBuffer buffer = Argument(arguments, i);
    const auto known = ToDType(buffer.element_type());
    if (!known || (dtype && *known != *dtype)) {
      return Status(StatusCode::kInternal, "operands of an unknown or of unlike types");
    }
    dtype = known;
    counts.push_back(buffer.element_count());
    shapes.push_back(ShapeText(buffer));
  }
  if (!dtype) return Status(StatusCode::kInternal, "a reduction without operands");
  SMDDP_RETURN_IF_ERROR(CheckOperator(request.op, *dtype));
  const auto wire = WireOf(request, *dtype);
  SMDDP_RETURN_IF_ERROR(wire.status());
  return Signature(static_cast<ReduceOp>(request.op), *dtype, counts, shapes, *wire);
}

Result<Signature> ReduceScatterOf(const Request& request, const ffi::AnyBuffer& argument,
                                  const ffi::AnyBuffer& result, size_t members) {
  const auto dtype = ToDType(argument.element_type());
  if (!dtype || result.element_type() != argument.element_type() ||
      argument.element_count() != result.element_count() * members) {
    return NotBlocks(argument, result, members);
  }
  SMDDP_RETURN_IF_ERROR(CheckOperator(request.op, *dtype));
  const auto wire = WireOf(request, *dtype);
  SMDDP_RETURN_IF_ERROR(wire.status());
  return Signature::ReduceScatter(static_cast<ReduceOp>(request.op), *dtype,
                                  argument.element_count(), ShapeText(argument), *wire);
}

Result<Signature> AllGatherOf(const ffi::AnyBuffer& argument,
                              const ffi::AnyBuffer& result, size_t members) {
  if (result.element_type() != argument.element_type() ||
      result.element_count() != argument.element_count() * members) {
    return NotBlocks(argument, result, members);
  }
  return Signature::AllGather(result.size_bytes(), TypeText(result));
}

}  // namespace

Result<Signature> SignatureOf(const Request& request, size_t members, size_t tensors,
                              ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  if (request.kind == Collective::kAllReduce) {
    return AllReduceOf(request, arguments, tensors);
  }
  if (results.size() != 1) {
    return Status(StatusCode::kInternal, "blocks of more than one array");
  }
  const ffi::AnyBuffer argument = Argument(arguments, 0);
  const ffi::AnyBuffer result = ResultBuffer(results, 0);
  return request.kind == Collective::kAllGather
             ? AllGatherOf(argument, result, members)
             : ReduceScatterOf(request, argument, result, members);
}

}  // namespace smddp
