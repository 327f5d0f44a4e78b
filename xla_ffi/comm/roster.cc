// SPDX-License-Identifier: Apache-2.0
#include "comm/roster.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "transport/address.h"

namespace smddp {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "an unnamed host";
}

std::string Key(int process) { return "smddp/meet/" + std::to_string(process); }

template <typename Items>
std::string Join(const Items& items) {
  std::ostringstream text;
  for (const auto& item : items) text << (text.tellp() > 0 ? "," : "") << item;
  return text.str();
}

// The settings that decide how bytes are laid out: all processes must compute the same.
Fields SharedSettings(const Settings& settings) {
  return {
      {"SMDDP_SEGMENT_BYTES", std::to_string(settings.segment_bytes)},
      {"SMDDP_SHARD_BYTES", std::to_string(settings.shard_bytes)},
      {"SMDDP_STAGING_BYTES", std::to_string(settings.staging_bytes)},
      {"SMDDP_CONNECTIONS", std::to_string(settings.connections)},
      {"SMDDP_REDUCERS", Join(settings.reducers)},
      {"SMDDP_WEIGHTS", settings.measure_weights ? "measure" : Join(settings.weights)}};
}

// One "name value" per line; values may hold anything but a line's end.
std::string Encode(const Card& card, const Fields& settings) {
  Fields fields = {{"nonce", card.nonce},
                   {"host_id", card.host_id},
                   {"host_name", card.host_name},
                   {"address", card.address}};
  fields.insert(fields.end(), settings.begin(), settings.end());
  std::string text;
  for (auto& [name, value] : fields) {
    std::replace(value.begin(), value.end(), '\n', ' ');
    text += name + " " + value + "\n";
  }
  return text;
}

std::map<std::string, std::string> Decode(const std::string& text) {
  std::map<std::string, std::string> fields;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos)
      fields[line.substr(0, space)] = line.substr(space + 1);
  }
  return fields;
}

// The local address from which the coordinator is reached, or of the chosen interface.
Result<std::string> MyAddress(const Settings& settings) {
  if (!settings.interface.empty()) {
    auto address = AddressOfInterface(settings.interface);
    SMDDP_RETURN_IF_ERROR(address.status());
    return address->Text();
  }
  if (settings.coordinator.empty()) return std::string("127.0.0.1:0");
  auto coordinator = ResolveAddress(settings.coordinator);
  SMDDP_RETURN_IF_ERROR(coordinator.status());
  auto address = AddressTowards(*coordinator);
  SMDDP_RETURN_IF_ERROR(address.status());
  return address->Text();
}

}  // namespace

std::string RandomNonce() {
  unsigned char bytes[16];
  // 16 bytes never block and never come short once the kernel is up (getrandom(2)).
  if (::getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) return {};
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<Roster> Roster::Meet(int process, int processes, const std::string& nonce,
                            const Settings& settings, KeyValueStore& store,
                            const Deadline& deadline) {
  auto address = MyAddress(settings);
  SMDDP_RETURN_IF_ERROR(address.status());
  const Card mine = {nonce, settings.host_id, HostName(), *address};
  const Fields shared = SharedSettings(settings);
  SMDDP_RETURN_IF_ERROR(store.Set(Key(process), Encode(mine, shared)));

  Roster roster;
  roster.process_ = process;
  for (int other = 0; other < processes; ++other) {
    if (other == process) {
      roster.cards_.push_back(mine);
      continue;
    }
    auto text = store.Get(Key(other), deadline);
    if (!text.ok()) {
      return Status(text.status().code(),
                    "rank " + std::to_string(process) + " waited for rank " +
                        std::to_string(other) + " to start and join: " +
                        text.status().message() + ". Is that process running?");
    }
    auto fields = Decode(*text);
    for (const auto& [name, value] : shared) {
      if (fields[name] == value) continue;
      return Status(StatusCode::kMismatch,
                    name + " is '" + value + "' on rank " + std::to_string(process) +
                        " and '" + fields[name] + "' on rank " + std::to_string(other) +
                        "; set it to one value everywhere");
    }
    roster.cards_.push_back(
        {fields["nonce"], fields["host_id"], fields["host_name"], fields["address"]});
  }
  return roster;
}

std::vector<std::string> Roster::host_ids() const {
  std::vector<std::string> ids;
  for (const Card& card : cards_) ids.push_back(card.host_id);
  return ids;
}

std::vector<int> Roster::hosts() const {
  std::vector<int> firsts;
  for (int p = 0; p < processes(); ++p) {
    const auto same = [&](int first) { return card(first).host_id == card(p).host_id; };
    if (std::none_of(firsts.begin(), firsts.end(), same)) firsts.push_back(p);
  }
  return firsts;
}

std::string Roster::Describe(int process) const {
  return "rank " + std::to_string(process) + " (on " + card(process).host_name + ")";
}

}  // namespace smddp
