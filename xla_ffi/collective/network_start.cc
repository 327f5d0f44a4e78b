// SPDX-License-Identifier: Apache-2.0
// How the network of a process comes up: the job's name and secret, addresses, peers.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <sstream>
#include <utility>

#include "base/hash.h"
#include "base/hmac.h"
#include "collective/network.h"
#include "plan/topology.h"

namespace smddp {
namespace {

// The greeter gives up first, and says why.
constexpr double kGraceSeconds = 1.0;

// Tells two secrets apart, and no more.
std::string Fingerprint(const std::string& secret, const std::string& job) {
  const auto mac =
      HmacSha256(std::as_bytes(std::span(secret)), std::as_bytes(std::span(job)));
  std::ostringstream text;
  text << std::hex;
  for (std::byte byte : std::span(mac).first(8)) text << static_cast<int>(byte) << '.';
  return text.str();
}

std::string AddressKey(int process) { return "smddp/address/" + std::to_string(process); }

}  // namespace

Status Network::MakeLanes() {
  for (size_t index = 0; index < static_cast<size_t>(settings_.connections); ++index) {
    NetworkLane::Events of_lane;
    of_lane.on_mail = [this](uint64_t stream, Mail mail) {
      Post(stream, std::move(mail));
    };
    of_lane.on_probed = [this](int peer, uint64_t burst) {
      nic_speeds_.Answered(peer, burst);
    };
    of_lane.on_lost = [this, index](int peer, const std::string& why) {
      OnLost(index, peer, why);
    };
    of_lane.after = events_.wake;
    of_lane.on_failed = [this](const Status& status) {
      for (int p = 0; p < roster_.processes(); ++p) {
        if (roster_.OnMyHost(p)) continue;
        events_.on_lost(p, "cannot be talked to: " + status.message());
      }
    };
    auto made =
        NetworkLane::Make(index, roster_.processes(), settings_, std::move(of_lane));
    SMDDP_RETURN_IF_ERROR(made.status());
    lanes_.push_back(std::move(*made));
  }
  return Status();
}

Result<std::unique_ptr<Network>> Network::Start(const Roster& roster,
                                                const Settings& settings,
                                                KeyValueStore& store,
                                                const Deadline& deadline, Events events) {
  const size_t nics = roster.hosts().size() + settings.reducers.size();
  if (!settings.weights.empty() && settings.weights.size() != nics) {
    return Status(StatusCode::kInvalidArgument,
                  "SMDDP_WEIGHTS has " + std::to_string(settings.weights.size()) +
                      " numbers; it takes one for each of " +
                      std::to_string(roster.hosts().size()) +
                      " hosts, then one for each of " +
                      std::to_string(settings.reducers.size()) + " reducers");
  }
  std::unique_ptr<Network> network(new Network(roster, settings, std::move(events)));
  SMDDP_RETURN_IF_ERROR(network->MakeLanes());
  SMDDP_RETURN_IF_ERROR(network->AgreeOnJob(store, deadline));
  network->AwaitCounterparts();
  SMDDP_RETURN_IF_ERROR(network->Listen(store));
  SMDDP_RETURN_IF_ERROR(network->TradeAddresses(store, deadline));
  for (auto& lane : network->lanes_) lane->lane().Start();
  SMDDP_RETURN_IF_ERROR(network->MeetPeers(deadline));
  if (settings.measure_weights) {
    auto weights = network->nic_speeds_.Measure(store, deadline);
    SMDDP_RETURN_IF_ERROR(weights.status());
    network->weights_ = std::move(*weights);
  }
  return network;
}

// Most groups need them, and the death of one that is not connected would go unnoticed.
void Network::AwaitCounterparts() {
  std::vector<int> all(static_cast<size_t>(roster_.processes()));
  std::iota(all.begin(), all.end(), 0);
  const Topology topology(all, roster_.host_ids(), roster_.process());
  if (!topology.on_rail()) return;
  for (size_t h = 0; h < topology.hosts(); ++h) {
    if (h == topology.my_host()) continue;
    for (size_t lane = 0; lane < lanes(); ++lane) {
      awaited_.emplace(topology.counterpart(h), lane);
    }
  }
}

// Rank 0 names the job, and makes a secret if the launcher made none.
Status Network::AgreeOnJob(KeyValueStore& store, const Deadline& deadline) {
  const std::string key = "smddp/job";
  if (roster_.process() == 0) {
    const std::string job = RandomNonce();
    const bool given = !settings_.secret.empty();
    secret_ = given ? settings_.secret : RandomNonce() + RandomNonce();
    job_ = Hash64().Add(job).value();
    return store.Set(
        key, job + " " + Fingerprint(secret_, job) + " " + (given ? "" : secret_));
  }
  auto text = store.Get(key, deadline);
  SMDDP_RETURN_IF_ERROR(text.status());
  std::istringstream fields(*text);
  std::string job, fingerprint, made;
  fields >> job >> fingerprint >> made;
  job_ = Hash64().Add(job).value();
  secret_ = settings_.secret.empty() ? made : settings_.secret;
  if (!secret_.empty() && Fingerprint(secret_, job) == fingerprint) return Status();
  return Status(
      StatusCode::kMismatch,
      "SMDDP_SECRET of rank " + std::to_string(roster_.process()) +
          " is not that of rank 0; give all ranks the same one, or none to any");
}

// Listens on the interface of the job: the one towards the coordinator, or, where that is
// this very host, the one towards another host.
Status Network::Listen(KeyValueStore& store) {
  auto address = ResolveAddress(roster_.mine().address);
  SMDDP_RETURN_IF_ERROR(address.status());
  for (int p = 0; p < roster_.processes() && address->is_loopback(); ++p) {
    auto theirs = ResolveAddress(roster_.card(p).address);
    if (!theirs.ok() || theirs->is_loopback()) continue;
    auto mine = AddressTowards(*theirs);
    SMDDP_RETURN_IF_ERROR(mine.status());
    address = std::move(mine);
  }
  int index = 0;
  for (int p = 0; p < roster_.process(); ++p) index += roster_.OnMyHost(p) ? 1 : 0;
  address->set_port(settings_.port == 0 ? 0 : settings_.port + index);
  Greeter::Options options;
  options.me = Me();
  options.secret = secret_;
  Greeter::Events of_greeter;
  of_greeter.admit = [this](const Identity& peer) { return Admit(peer); };
  of_greeter.on_peer = [this](const Identity& peer, uint64_t token, UniqueFd socket) {
    OnPeer(peer, token, std::move(socket));
  };
  of_greeter.on_failed = [this](uint64_t token, const Status& why) {
    OnFailed(token, why);
  };
  auto greeter = Greeter::Start(*address, std::move(options), std::move(of_greeter));
  SMDDP_RETURN_IF_ERROR(greeter.status());
  greeter_ = std::move(*greeter);
  return store.Set(AddressKey(roster_.process()), greeter_->address().Text());
}

Status Network::TradeAddresses(KeyValueStore& store, const Deadline& deadline) {
  for (int p = 0; p < roster_.processes(); ++p) {
    if (roster_.OnMyHost(p)) continue;
    auto address = store.Get(AddressKey(p), deadline);
    SMDDP_RETURN_IF_ERROR(address.status());
    addresses_[static_cast<size_t>(p)] = *address;
  }
  return Status();
}

Status Network::MeetPeers(const Deadline& deadline) {
  // Those that connect to us may have done so already.
  for (int p = 0; p < roster_.process(); ++p) {
    if (Awaits(p)) Reach(p);
  }
  for (size_t r = 0; r < settings_.reducers.size(); ++r) {
    for (size_t lane = 0; lane < lanes(); ++lane) {
      ConnectReducer(r, lane, deadline.SecondsLeft());
    }
  }
  // A connection that comes too late says why by itself.
  const std::chrono::duration<double> patience(deadline.SecondsLeft() + kGraceSeconds);
  std::unique_lock lock(mutex_);
  const bool met = changed_.wait_for(lock, patience, [this] {
    return meeting_failed_ ||
           (awaited_.empty() && std::all_of(reducer_lanes_.begin(), reducer_lanes_.end(),
                                            [this](size_t n) { return n == lanes(); }));
  });
  met_ = true;
  if (met) return meeting_failed_.value_or(Status());
  if (!awaited_.empty()) {
    return Status(StatusCode::kDeadline,
                  "no connection from " + Name(awaited_.begin()->first) +
                      " came; check that it runs, that the address of rank " +
                      std::to_string(roster_.process()) + ", " +
                      greeter_->address().Text() +
                      ", can be reached from there (SMDDP_INTERFACE, SMDDP_PORT) and "
                      "that no firewall is between");
  }
  return Status(StatusCode::kDeadline,
                "a dedicated reducer came and went again while the job was started");
}

}  // namespace smddp
