// SPDX-License-Identifier: Apache-2.0
#include "transport/address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "base/unique_fd.h"

namespace smddp {
namespace {

Status Refuse(const std::string& message) {
  return Status(StatusCode::kInvalidArgument, message);
}

Address FromRaw(const sockaddr* raw, socklen_t size) {
  Address address;
  std::memcpy(&address.storage, raw, size);
  address.size = size;
  return address;
}

const sockaddr* Raw(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

const sockaddr_in& V4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}

const sockaddr_in6& V6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

// "host:port" or "[host]:port", taken apart.
Result<std::pair<std::string, std::string>> Split(const std::string& text) {
  const Status wrong =
      Refuse("'" + text +
             "' is no address: write host:port, such as 10.0.0.1:4321 or [::1]:4321");
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return wrong;
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.size() < 3 || host.back() != ']') return wrong;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return wrong;
  }
  uint16_t number = 0;
  const char* end = port.data() + port.size();
  const auto [parsed, error] = std::from_chars(port.data(), end, number);
  if (error != std::errc() || parsed != end) return wrong;
  return std::pair{host, port};
}

// Lower is better.
int Preference(const sockaddr* raw) {
  if (raw->sa_family == AF_INET) return 0;
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(raw);
  return IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr) ? 2 : 1;
}

}  // namespace

std::string Address::Text() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  const int error = ::getnameinfo(Raw(*this), size, host, sizeof(host), port,
                                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
  if (error != 0) return "(no address)";
  const bool v6 = storage.ss_family == AF_INET6;
  return (v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + port;
}

int Address::port() const {
  if (storage.ss_family == AF_INET6) return ntohs(V6(storage).sin6_port);
  return ntohs(V4(storage).sin_port);
}

void Address::set_port(int port) {
  const in_port_t number = htons(static_cast<uint16_t>(port));
  if (storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = number;
  }
}

bool Address::is_loopback() const {
  if (storage.ss_family == AF_INET) {
    return ntohl(V4(storage).sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& v6 = V6(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) ||
         (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Result<Address> ResolveAddress(const std::string& text) {
  const auto parts = Split(text);
  SMDDP_RETURN_IF_ERROR(parts.status());
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error =
      ::getaddrinfo(parts->first.c_str(), parts->second.c_str(), &hints, &list);
  if (error != 0) {
    return Refuse("cannot resolve '" + text + "': " + ::gai_strerror(error) +
                  "; check the name, or write the numeric address");
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &::freeaddrinfo);
  const addrinfo* best = list;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (Preference(entry->ai_addr) < Preference(best->ai_addr)) best = entry;
  }
  return FromRaw(best->ai_addr, best->ai_addrlen);
}

Result<Address> AddressOfInterface(const std::string& name) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return SystemError("listing the network interfaces");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &::freeifaddrs);
  const sockaddr* best = nullptr;
  std::set<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const sockaddr* raw = entry->ifa_addr;
    if (raw == nullptr) continue;
    if (raw->sa_family != AF_INET && raw->sa_family != AF_INET6) continue;
    names.insert(entry->ifa_name);
    if (name != entry->ifa_name) continue;
    if (best == nullptr || Preference(raw) < Preference(best)) best = raw;
  }
  if (best != nullptr) {
    return FromRaw(
        best, best->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  }
  std::string known;
  for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
  return Refuse("no network interface '" + name +
                "' with an address; those with one: " + known);
}

Result<Address> AddressTowards(const Address& peer) {
  // Connecting a datagram socket sends nothing: the kernel only looks up the route.
  const UniqueFd socket(::socket(peer.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError("socket");
  Address target = peer;
  if (target.port() == 0) target.set_port(9);  // Any will do; 0 is refused.
  if (::connect(socket.get(), Raw(target), target.size) != 0) {
    return SystemError("no route to " + peer.Text());
  }
  Address local;
  local.size = sizeof(local.storage);
  auto* raw = reinterpret_cast<sockaddr*>(&local.storage);
  if (::getsockname(socket.get(), raw, &local.size) != 0) {
    return SystemError("getsockname");
  }
  local.set_port(0);
  return local;
}

}  // namespace smddp
