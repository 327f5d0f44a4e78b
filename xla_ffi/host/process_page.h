// SPDX-License-Identifier: Apache-2.0
// What each process shows the other processes of its host: one page of shared memory.
//
// Written by its owner, read by all; the doorbell may be rung by all. The notice board
// says what the owner waits for, so that an error can show both sides of a
// disagreement; its text is guarded by a version that is odd while it changes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "host/doorbell.h"

namespace smddp {

class NoticeBoard {
 public:
  struct Notice {
    uint64_t op = 0;     // The collective that the owner waits in; 0: in none.
    uint64_t step = 0;   // How many times it was reached before.
    uint64_t group = 0;  // Its group.
    std::string text;
  };

  void Post(const Notice& notice) {
    const std::string& text = notice.text;
    const uint32_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_seq_cst);
    op_.store(notice.op, std::memory_order_seq_cst);
    step_.store(notice.step, std::memory_order_seq_cst);
    group_.store(notice.group, std::memory_order_seq_cst);
    for (size_t i = 0; i < kText; ++i) {
      const char c = i < text.size() && i + 1 < kText ? text[i] : '\0';
      text_[i].store(c, std::memory_order_relaxed);
    }
    version_.store(version + 2, std::memory_order_seq_cst);
  }

  // The latest whole notice; an empty one while the owner is changing it.
  Notice Read() const {
    Notice notice;
    const uint32_t before = version_.load(std::memory_order_seq_cst);
    if (before % 2 != 0) return notice;
    notice.op = op_.load(std::memory_order_seq_cst);
    notice.step = step_.load(std::memory_order_seq_cst);
    notice.group = group_.load(std::memory_order_seq_cst);
    for (size_t i = 0; i < kText; ++i) {
      const char c = text_[i].load(std::memory_order_acquire);
      if (c == '\0') break;
      notice.text.push_back(c);
    }
    return version_.load(std::memory_order_seq_cst) == before ? notice : Notice();
  }

 private:
  static constexpr size_t kText = 512;

  std::atomic<uint32_t> version_{0};
  std::atomic<uint64_t> op_{0};
  std::atomic<uint64_t> step_{0};
  std::atomic<uint64_t> group_{0};
  std::atomic<char> text_[kText] = {};
};

// All zero is the valid initial state, so fresh shared memory needs no constructor.
struct ProcessPage {
  alignas(64) Doorbell doorbell;
  alignas(64) NoticeBoard board;
};

}  // namespace smddp
