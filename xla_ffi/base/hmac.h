// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), by which peers prove the job's secret.
//
// Pure functions; any thread. A handful of short messages per connection: small code
// matters here, speed does not.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace smddp {

using Digest = std::array<std::byte, 32>;

Digest Sha256(std::span<const std::byte> text);
Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> text);

// Takes as long for a first byte that differs as for the last: time tells a guesser
// nothing. Spans of different sizes are unequal.
bool EqualInConstantTime(std::span<const std::byte> a, std::span<const std::byte> b);

}  // namespace smddp
