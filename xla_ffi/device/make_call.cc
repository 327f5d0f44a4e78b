// SPDX-License-Identifier: Apache-2.0
#include "device/make_call.h"

#include <algorithm>
#include <limits>
#include <string>

#include "device/unit.h"

namespace smddp::device {
namespace {

// Leaves room for a thread's steps behind the last unit.
constexpr size_t kMaxUnits = size_t{1} << 30;

constexpr size_t DivideUp(size_t a, size_t b) { return (a + b - 1) / b; }

// Numbers of the kernel's type that an element of the user's has.
size_t NumbersOf(DType dtype) { return SizeOf(dtype) / SizeOf(KernelType(dtype)); }

// How `kind` lays elements out in units.
struct UnitShape {
  explicit UnitShape(const Kind& kind) {
    const size_t in = SizeOf(KernelType(kind.in));
    const size_t out = SizeOf(KernelType(kind.out));
    const size_t numbers = sizeof(Vector) / std::min(in, out);
    in_bytes = numbers * in;
    out_bytes = numbers * out;
    // A unit of 16-byte complex elements is one of them.
    elements = numbers / NumbersOf(kind.in);
  }
  size_t elements;
  size_t in_bytes;
  size_t out_bytes;
};

size_t UnitsOf(const Tensor& tensor, const UnitShape& shape) {
  return DivideUp(tensor.count, shape.elements);
}

size_t UnitsOf(std::span<const Tensor> tensors, const UnitShape& shape) {
  size_t units = 0;
  for (const Tensor& tensor : tensors) units += UnitsOf(tensor, shape);
  return units;
}

size_t BorderOf(size_t units, size_t ranks, size_t rank) {
  return std::min(units, DivideUp(units, ranks) * rank);
}

// Bytes of a staging buffer's half that a call over `units` needs.
struct Layout {
  Layout(Algorithm algorithm, size_t units, size_t ranks, const UnitShape& shape) {
    if (algorithm == Algorithm::kOneShot) slot_bytes = units * shape.in_bytes;
    if (algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kReduceScatter) {
      slot_bytes = DivideUp(units, ranks) * shape.in_bytes;
    }
    results_offset = ranks * slot_bytes;
    total = results_offset;
    if (algorithm == Algorithm::kTwoShot || algorithm == Algorithm::kAllGather) {
      total += units * shape.out_bytes;
    }
  }
  size_t slot_bytes = 0;
  size_t results_offset = 0;
  size_t total = 0;
};

// The most units whose layout fits.
size_t UnitsThatFit(const Group& group, Algorithm algorithm, const UnitShape& shape) {
  // Counted for whole parts: the last call's may be shorter.
  const size_t per_round = Layout(algorithm, group.ranks, group.ranks, shape).total;
  return std::min(group.half_bytes / per_round * group.ranks, kMaxUnits);
}

Span SpanOf(const void* data, size_t count, size_t element_bytes, size_t first,
            size_t unit_bytes) {
  const size_t bytes = count * element_bytes;
  const size_t units = DivideUp(bytes, unit_bytes);
  const bool aligned = reinterpret_cast<uintptr_t>(data) % sizeof(Vector) == 0;
  Span span;
  span.data = static_cast<char*>(const_cast<void*>(data));
  span.first = static_cast<uint32_t>(first);
  span.whole_end = static_cast<uint32_t>(first + (aligned ? bytes / unit_bytes : 0));
  span.end = static_cast<uint32_t>(first + units);
  span.last_bytes = static_cast<uint32_t>(bytes - (units - 1) * unit_bytes);
  return span;
}

class Maker {
 public:
  Maker(const Group& group, uint64_t number, Algorithm algorithm, const Kind& kind,
        std::span<const Tensor> tensors)
      : group_(group), kind_(kind), tensors_(tensors), shape_(kind) {
    call_.algorithm = algorithm;
    call_.rank = group.rank;
    call_.ranks = group.ranks;
    call_.number = number;
    call_.scale = kind.scale;
    call_.watch = group.watch;
  }

  Status Check() const {
    if (group_.ranks < 1 || group_.ranks > kMaxRanks || group_.rank >= group_.ranks) {
      return Invalid("rank " + std::to_string(group_.rank) + " of " +
                     std::to_string(group_.ranks) + ": a group of GPUs has 1 to " +
                     std::to_string(kMaxRanks));
    }
    const size_t units = UnitsOf(tensors_, shape_);
    const size_t bytes = Layout(call_.algorithm, units, group_.ranks, shape_).total;
    if (bytes > group_.half_bytes || units > kMaxUnits) {
      return Invalid("a call needs " + std::to_string(bytes) +
                     " bytes of staging and half a buffer has " +
                     std::to_string(group_.half_bytes) + "; use CutIntoCalls()");
    }
    if (Filled() > kMaxSpans) {
      return Invalid("a call of " + std::to_string(Filled()) +
                     " tensors: one takes at most " + std::to_string(kMaxSpans) +
                     "; use CutIntoCalls()");
    }
    return {};
  }

  Call Make(void* part) {
    const size_t units = UnitsOf(tensors_, shape_);
    for (uint32_t r = 0; r <= group_.ranks; ++r) {
      call_.borders[r] = static_cast<uint32_t>(BorderOf(units, group_.ranks, r));
    }
    const Layout layout(call_.algorithm, units, group_.ranks, shape_);
    call_.slot_bytes = layout.slot_bytes;
    call_.results_offset = layout.results_offset;
    const size_t half = call_.number % 2 * group_.half_bytes;
    for (uint32_t r = 0; r < group_.ranks; ++r) {
      call_.flags[r] = group_.flags[r];
      call_.staging[r] = group_.staging[r] + half;
    }
    const size_t range =
        call_.algorithm == Algorithm::kOneShot ? units : call_.borders[1];
    call_.blocks = static_cast<uint32_t>(
        std::clamp<size_t>(DivideUp(range, kThreads), 1, group_.max_blocks));
    AddSpans(part);
    return call_;
  }

 private:
  static Status Invalid(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }

  size_t Filled() const {
    return std::count_if(tensors_.begin(), tensors_.end(),
                         [](const Tensor& t) { return t.count > 0; });
  }

  void AddSpans(void* part) {
    if (call_.algorithm == Algorithm::kAllGather) {
      AddPart(call_.from, part, shape_.in_bytes);
    } else {
      AddTensors(call_.from, &Tensor::from, kind_.in, shape_.in_bytes);
    }
    if (call_.algorithm == Algorithm::kReduceScatter) {
      AddPart(call_.to, part, shape_.out_bytes);
    } else {
      AddTensors(call_.to, &Tensor::to, kind_.out, shape_.out_bytes);
    }
  }

  template <class Pointer>
  void AddTensors(Spans& spans, Pointer Tensor::* data, DType dtype, size_t unit_bytes) {
    size_t first = 0;
    for (const Tensor& tensor : tensors_) {
      if (tensor.count == 0) continue;
      spans.spans[spans.count++] =
          SpanOf(tensor.*data, tensor.count, SizeOf(dtype), first, unit_bytes);
      first += UnitsOf(tensor, shape_);
    }
  }

  void AddPart(Spans& spans, const void* part, size_t unit_bytes) {
    const size_t first = call_.borders[group_.rank];
    const size_t units = call_.borders[group_.rank + 1] - first;
    if (units > 0) {
      spans.spans[spans.count++] = SpanOf(part, units, unit_bytes, first, unit_bytes);
    }
  }

  const Group& group_;
  const Kind& kind_;
  const std::span<const Tensor> tensors_;
  const UnitShape shape_;
  Call call_{};
};

Result<Call> Make(const Group& group, uint64_t number, Algorithm algorithm,
                  const Kind& kind, std::span<const Tensor> tensors, void* part) {
  Maker maker(group, number, algorithm, kind, tensors);
  SMDDP_RETURN_IF_ERROR(maker.Check());
  return maker.Make(part);
}

const void* Behind(const void* data, size_t bytes) {
  return data == nullptr ? nullptr : static_cast<const char*>(data) + bytes;
}

}  // namespace

Algorithm ChooseAllReduce(size_t bytes, size_t one_shot_bytes) {
  return bytes <= one_shot_bytes ? Algorithm::kOneShot : Algorithm::kTwoShot;
}

DType KernelType(DType dtype) {
  if (dtype == DType::kC64) return DType::kF32;
  if (dtype == DType::kC128) return DType::kF64;
  return dtype;
}

std::vector<std::vector<Tensor>> CutIntoCalls(const Group& group, Algorithm algorithm,
                                              const Kind& kind,
                                              std::span<const Tensor> tensors) {
  const UnitShape shape(kind);
  // Where not even one fits, making the call says so.
  const size_t most = std::max<size_t>(UnitsThatFit(group, algorithm, shape), 1);
  std::vector<std::vector<Tensor>> calls;
  size_t room = 0;
  for (Tensor tensor : tensors) {
    while (tensor.count > 0) {
      if (room == 0 || calls.back().size() == kMaxSpans) {
        calls.emplace_back();
        room = most;
      }
      Tensor piece = tensor;
      piece.count = std::min(tensor.count, room * shape.elements);
      calls.back().push_back(piece);
      room -= UnitsOf(piece, shape);
      tensor.from = Behind(tensor.from, piece.count * SizeOf(kind.in));
      tensor.to = const_cast<void*>(Behind(tensor.to, piece.count * SizeOf(kind.out)));
      tensor.count -= piece.count;
    }
  }
  return calls;
}

size_t PartElements(const Kind& kind, std::span<const Tensor> tensors, uint32_t ranks,
                    uint32_t rank) {
  const UnitShape shape(kind);
  const size_t units = UnitsOf(tensors, shape);
  return (BorderOf(units, ranks, rank + 1) - BorderOf(units, ranks, rank)) *
         shape.elements;
}

Result<Call> MakeAllReduce(const Group& group, uint64_t number, Algorithm algorithm,
                           const Kind& kind, std::span<const Tensor> tensors) {
  return Make(group, number, algorithm, kind, tensors, nullptr);
}

Result<Call> MakeReduceScatter(const Group& group, uint64_t number, const Kind& kind,
                               std::span<const Tensor> tensors, void* part) {
  return Make(group, number, Algorithm::kReduceScatter, kind, tensors, part);
}

Result<Call> MakeAllGather(const Group& group, uint64_t number, const Kind& kind,
                           const void* part, std::span<const Tensor> tensors) {
  return Make(group, number, Algorithm::kAllGather, kind, tensors,
              const_cast<void*>(part));
}

}  // namespace smddp::device
