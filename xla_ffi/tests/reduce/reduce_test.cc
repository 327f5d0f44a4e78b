// SPDX-License-Identifier: Apache-2.0
#include "reduce/reduce.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "reduce/kernels.h"
#include "tests/reduce/reference.h"

namespace smddp::testing {
namespace {

std::vector<Case> AllCases() {
  std::vector<Case> cases = UncastCases();
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    AddCastCases(op, cases);
  }
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return std::string(Name(info.param.op)) + "_" + Name(info.param.in) + "_" +
         Name(info.param.out);
}

// An array at a chosen distance from a cache line, with guard bytes on both sides.
class Guarded {
 public:
  Guarded(size_t size, size_t misalignment)
      : size_(size),
        begin_(kGuard + misalignment),
        bytes_(size + 2 * kGuard + 128, 0xa5) {
    begin_ += -reinterpret_cast<uintptr_t>(bytes_.data() + kGuard) % 64;
  }
  Guarded(const Bytes& value, size_t misalignment) : Guarded(value.size(), misalignment) {
    std::copy(value.begin(), value.end(), data());
  }
  uint8_t* data() { return bytes_.data() + begin_; }
  Bytes Value() { return {data(), data() + size_}; }
  bool GuardsHold() {
    return std::all_of(bytes_.data(), data(), [](uint8_t b) { return b == 0xa5; }) &&
           std::all_of(data() + size_, bytes_.data() + bytes_.size(),
                       [](uint8_t b) { return b == 0xa5; });
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t size_;
  size_t begin_;
  Bytes bytes_;
};

std::vector<Bytes> RandomInputs(DType dtype, size_t n, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Bytes> inputs;
  for (size_t i = 0; i < n; ++i) inputs.push_back(RandomArray(dtype, count, random));
  return inputs;
}

std::vector<Guarded> Place(const std::vector<Bytes>& arrays, size_t misalignment) {
  std::vector<Guarded> placed;
  for (const Bytes& a : arrays) {
    placed.emplace_back(a, misalignment * (placed.size() + 1) % 64);
  }
  return placed;
}

std::vector<const void*> Pointers(std::vector<Guarded>& arrays) {
  std::vector<const void*> pointers;
  for (Guarded& a : arrays) pointers.push_back(a.data());
  return pointers;
}

class ReduceCase : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ReduceCase, ::testing::ValuesIn(AllCases()), CaseName);

// Every instruction set against the reference, so all of them give the same bits.
TEST_P(ReduceCase, KernelsMatchReference) {
  const auto [op, in, out] = GetParam();
  if (IsComplex(in)) return;  // Reduce() does these as real numbers.
  for (size_t count : {0, 1, 3, 7, 127, 129, 1023}) {
    for (size_t n : {1, 2, 3, 8, 9}) {
      const auto values = RandomInputs(in, n, count, count * 10 + n);
      const Bytes expected = Expected(op, in, out, values, count);
      for (size_t misalignment : {0, 1, 3}) {
        auto inputs = Place(values, misalignment);
        for (auto set = reduce::AvailableKernels(); *set != nullptr; ++set) {
          Guarded output(expected.size(), misalignment);
          (*set)->combine(op, in, out)(Pointers(inputs).data(), n, 0, count,
                                       output.data());
          const size_t e = FirstDifference(out, output.Value(), expected, count);
          ASSERT_EQ(e, count) << (*set)->name << ", " << n << " inputs";
          ASSERT_TRUE(output.GuardsHold());
        }
      }
    }
  }
}

TEST_P(ReduceCase, ReduceMatchesReference) {
  const auto [op, in, out] = GetParam();
  for (size_t count : {1, 129, 5003, 65537}) {
    const size_t n = count > 10000 ? 2 : 1 + count % 9;
    const auto values = RandomInputs(in, n, count, count);
    const Bytes expected = Expected(op, in, out, values, count);
    for (Store store : {Store::kCached, Store::kStreaming}) {
      for (size_t misalignment : {0, 4, 5}) {
        auto inputs = Place(values, misalignment);
        auto outputs = Place(std::vector<Bytes>(3, Bytes(expected.size())), misalignment);
        std::vector<void*> to;
        for (Guarded& output : outputs) to.push_back(output.data());
        Reduce(op, in, out, Pointers(inputs), to, count, store);
        for (Guarded& output : outputs) {
          ASSERT_EQ(FirstDifference(out, output.Value(), expected, count), count);
          ASSERT_TRUE(output.GuardsHold());
        }
      }
    }
  }
}

TEST_P(ReduceCase, InPlace) {
  const auto [op, in, out] = GetParam();
  if (SizeOf(in) != SizeOf(out)) return;
  constexpr size_t kCount = 4099;
  for (size_t n = 1; n <= 9; ++n) {
    const auto values = RandomInputs(in, n, kCount, n);
    const Bytes expected = Expected(op, in, out, values, kCount);
    for (Store store : {Store::kCached, Store::kStreaming}) {
      auto arrays = Place(values, 8);
      std::vector<void*> to;
      for (Guarded& array : arrays) to.push_back(array.data());
      std::reverse(to.begin(), to.end());
      Reduce(op, in, out, Pointers(arrays), to, kCount, store);
      for (Guarded& array : arrays) {
        ASSERT_EQ(FirstDifference(out, array.Value(), expected, kCount), kCount);
        ASSERT_TRUE(array.GuardsHold());
      }
    }
  }
}

template <class T>
T ReduceScalars(ReduceOp op, DType dtype, std::vector<T> values) {
  std::vector<const void*> inputs;
  for (const T& v : values) inputs.push_back(&v);
  T result{};
  void* const output = &result;
  Reduce(op, dtype, dtype, inputs, {&output, 1}, 1, Store::kCached);
  return result;
}

TEST(Reduce, NarrowSumsAreAccumulatedWide) {
  std::vector<uint16_t> bf16(8, kBfloat16.Encode(1));
  bf16[0] = kBfloat16.Encode(256);
  const uint16_t bf16_sum = ReduceScalars(ReduceOp::kSum, DType::kBF16, bf16);
  EXPECT_EQ(kBfloat16.Decode(bf16_sum), 264);

  std::vector<uint16_t> f16(8, kFloat16.Encode(1));
  f16[0] = kFloat16.Encode(2048);
  const uint16_t f16_sum = ReduceScalars(ReduceOp::kSum, DType::kF16, f16);
  EXPECT_EQ(kFloat16.Decode(f16_sum), 2056);
}

TEST(Reduce, IntegersWrap) {
  EXPECT_EQ(ReduceScalars<int8_t>(ReduceOp::kSum, DType::kS8, {127, 2}), -127);
  EXPECT_EQ(ReduceScalars<uint16_t>(ReduceOp::kSum, DType::kU16, {65535, 2}), 1);
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(ReduceScalars<int64_t>(ReduceOp::kSum, DType::kS64, {kLargest, 1}),
            std::numeric_limits<int64_t>::min());
}

TEST(Reduce, ZerosHaveAnOrder) {
  for (const auto& zeros : {std::vector<float>{0.0f, -0.0f}, {-0.0f, 0.0f}}) {
    EXPECT_FALSE(std::signbit(ReduceScalars(ReduceOp::kMax, DType::kF32, zeros)));
    EXPECT_TRUE(std::signbit(ReduceScalars(ReduceOp::kMin, DType::kF32, zeros)));
  }
}

TEST(Reduce, NanWins) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (ReduceOp op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
    EXPECT_TRUE(std::isnan(ReduceScalars<double>(op, DType::kF64, {kNan, kInf, 1})));
    EXPECT_TRUE(std::isnan(ReduceScalars<double>(op, DType::kF64, {-kInf, 1, kNan})));
  }
}

TEST(Reduce, ComplexHasNoOrder) {
  for (auto set = reduce::AvailableKernels(); *set != nullptr; ++set) {
    EXPECT_EQ((*set)->combine(ReduceOp::kMax, DType::kC64, DType::kC64), nullptr);
  }
}

// All values of a 16-bit format, one way and back, on every instruction set.
TEST(Reduce, NarrowFormatsSurviveFloat32) {
  constexpr size_t kCount = 65536;
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    Bytes all(2 * kCount);
    for (size_t e = 0; e < kCount; ++e) Put(all, e, static_cast<uint16_t>(e));
    const Bytes expected = Expected(ReduceOp::kSum, dtype, DType::kF32, {all}, kCount);
    for (auto set = reduce::AvailableKernels(); *set != nullptr; ++set) {
      Bytes wide(4 * kCount);
      Bytes back(2 * kCount);
      const void* input = all.data();
      (*set)->combine(ReduceOp::kSum, dtype, DType::kF32)(&input, 1, 0, kCount,
                                                          wide.data());
      EXPECT_EQ(FirstDifference(DType::kF32, wide, expected, kCount), kCount);
      input = wide.data();
      (*set)->combine(ReduceOp::kSum, DType::kF32, dtype)(&input, 1, 0, kCount,
                                                          back.data());
      EXPECT_EQ(FirstDifference(dtype, back, all, kCount), kCount) << (*set)->name;
    }
  }
}

// Bit patterns of float32 from its whole range, many of them halfway cases.
TEST(Reduce, RoundingToNarrowFormats) {
  constexpr size_t kCount = 1 << 18;
  Bytes values(4 * kCount);
  for (size_t e = 0; e < kCount; ++e) {
    const uint32_t halfway[] = {0,      0x8000, 0x1000, 0x7fff,
                                0x8001, 0x0fff, 0x1001, 0x3000};
    Put(values, e, static_cast<uint32_t>(e << 14 ^ halfway[(e * 7 + e / 8) % 8]));
  }
  for (DType dtype : {DType::kF16, DType::kBF16}) {
    const Bytes expected = Expected(ReduceOp::kSum, DType::kF32, dtype, {values}, kCount);
    for (auto set = reduce::AvailableKernels(); *set != nullptr; ++set) {
      Bytes rounded(2 * kCount);
      const void* input = values.data();
      (*set)->combine(ReduceOp::kSum, DType::kF32, dtype)(&input, 1, 0, kCount,
                                                          rounded.data());
      EXPECT_EQ(FirstDifference(dtype, rounded, expected, kCount), kCount)
          << (*set)->name << " " << Name(dtype);
    }
  }
}

TEST(Reduce, OneInputIsCopiedBitForBit) {
  constexpr uint16_t kSignallingNan = 0x7c01;
  EXPECT_EQ(ReduceScalars<uint16_t>(ReduceOp::kSum, DType::kF16, {kSignallingNan}),
            kSignallingNan);
}

TEST(Reduce, NothingToDo) {
  Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, std::vector<const void*>(3),
         std::vector<void*>(3), 0, Store::kStreaming);
}

// One window of memory mapped again and again, then a last page of its own: an array
// of over 2^31 elements that costs 16 MiB.
class LongArray {
 public:
  explicit LongArray(uint8_t fill) {
    const int fd = memfd_create("long_array", 0);
    EXPECT_EQ(ftruncate(fd, kWindow), 0);
    void* space = mmap(nullptr, kSize, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = static_cast<uint8_t*>(space);
    for (size_t at = 0; at + kWindow <= kSize; at += kWindow) {
      mmap(data_ + at, kWindow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    close(fd);
    std::memset(data_, fill, kWindow);
    std::memset(data_ + (kSize - kEnd), fill, kEnd);
  }
  ~LongArray() { munmap(data_, kSize); }
  LongArray(const LongArray&) = delete;
  LongArray& operator=(const LongArray&) = delete;
  uint8_t* data() { return data_; }

  static constexpr size_t kWindow = 16 << 20;
  static constexpr size_t kEnd = 4096;
  static constexpr size_t kSize = (size_t{1} << 31) + kEnd;

 private:
  uint8_t* data_;
};

TEST(Reduce, MoreThanTwoToThe31Elements) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "takes a minute under a sanitizer";
#endif
  LongArray a(1);
  LongArray b(2);
  a.data()[LongArray::kSize - 1] = 40;
  const void* const inputs[] = {a.data(), b.data()};
  void* const output = b.data();
  // The windows repeat, so sums of them would grow: take the greater one.
  Reduce(ReduceOp::kMax, DType::kU8, DType::kU8, inputs, {&output, 1}, LongArray::kSize,
         Store::kCached);
  EXPECT_EQ(b.data()[0], 2);
  EXPECT_EQ(b.data()[LongArray::kSize - 2], 2);
  EXPECT_EQ(b.data()[LongArray::kSize - 1], 40);
}

TEST(Reduce, ThreadsShareArrays) {
  constexpr size_t kCount = 100003;
  const auto values = RandomInputs(DType::kF32, 4, kCount, 1);
  const Bytes expected =
      Expected(ReduceOp::kSum, DType::kF32, DType::kF32, values, kCount);
  Bytes result(expected.size());
  const auto part = [&](size_t begin, size_t end) {
    std::vector<const void*> from;
    for (const Bytes& v : values) from.push_back(v.data() + begin * 4);
    void* const to = result.data() + begin * 4;
    Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, from, {&to, 1}, end - begin,
           Store::kStreaming);
  };
  {
    std::jthread first(part, 0, 33333);
    std::jthread second(part, 33333, kCount);
  }
  EXPECT_EQ(FirstDifference(DType::kF32, result, expected, kCount), kCount);
}

#if defined(__x86_64__)
// XLA's threads flush subnormals to zero; our results must not depend on the thread.
TEST(Reduce, KeepsSubnormalsOnAnyThread) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // Flush to zero, denormals are zero.
  const float tiny = 1e-40f;
  const void* const inputs[] = {&tiny, &tiny};
  uint32_t bits = 0;
  void* const output = &bits;
  Reduce(ReduceOp::kSum, DType::kF32, DType::kF32, inputs, {&output, 1}, 1,
         Store::kCached);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_NE(bits, 0u);
  EXPECT_EQ(after & 0x8040, 0x8040u);  // Restored.
}
#endif

TEST(Reduce, NamesItsInstructionSet) {
  EXPECT_STREQ(ReduceInstructionSet(), reduce::AvailableKernels()[0]->name);
}

}  // namespace
}  // namespace smddp::testing
