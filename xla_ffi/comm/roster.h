// SPDX-License-Identifier: Apache-2.0
// Who is in the job: what every process tells all others when it starts.
//
// Meet() is collective, over the key-value store, and blocks its caller. The result is
// a plain value that never changes; any thread may read it.
#pragma once

#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/status.h"
#include "comm/kv_store.h"

namespace smddp {

// What one process tells.
struct Card {
  std::string nonce;      // Names its local socket, and proves to know this card.
  std::string host_id;    // Equal for processes that share memory.
  std::string host_name;  // For messages.
  std::string address;  // Where the route to the coordinator starts; no port that counts.
};

class Roster {
 public:
  // `nonce`: RandomNonce(), under which this process listens locally already. Checks that
  // all processes have the same settings where they must; an error names the setting, the
  // ranks and both values.
  static Result<Roster> Meet(int process, int processes, const std::string& nonce,
                             const Settings& settings, KeyValueStore& store,
                             const Deadline& deadline);

  int process() const { return process_; }
  int processes() const { return static_cast<int>(cards_.size()); }
  const Card& card(int process) const { return cards_[static_cast<size_t>(process)]; }
  const Card& mine() const { return card(process_); }
  bool OnMyHost(int process) const { return card(process).host_id == mine().host_id; }
  // Host ids by process.
  std::vector<std::string> host_ids() const;
  // The first process of each host, ascending.
  std::vector<int> hosts() const;
  bool one_host() const { return hosts().size() == 1; }
  // "rank 3 (on node7)".
  std::string Describe(int process) const;

 private:
  Roster() = default;

  int process_ = 0;
  std::vector<Card> cards_;
};

// 128 random bits in hexadecimal.
std::string RandomNonce();

}  // namespace smddp
