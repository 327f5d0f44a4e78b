// SPDX-License-Identifier: Apache-2.0
// Where a process listens: choosing it, writing it down, reading it back.
//
// Plain values and pure or read-only functions; any thread. IPv4 and IPv6.
#pragma once

#include <sys/socket.h>

#include <string>

#include "base/status.h"

namespace smddp {

struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  // "10.0.0.1:4321" or "[fe80::1%eth0]:4321".
  std::string Text() const;
  int port() const;
  void set_port(int port);
  bool is_loopback() const;
};

// Resolves "host:port" ("[::1]:80" for IPv6; a name is looked up). Error: names the text
// and what to do.
Result<Address> ResolveAddress(const std::string& text);

// The local address (port 0) of interface `name`: IPv4 first, then global IPv6, then
// link-local. Error: names the interface and those that there are.
Result<Address> AddressOfInterface(const std::string& name);

// The local address (port 0) from which `peer` is reached.
Result<Address> AddressTowards(const Address& peer);

}  // namespace smddp
