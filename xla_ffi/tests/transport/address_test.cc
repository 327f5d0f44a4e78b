// SPDX-License-Identifier: Apache-2.0
#include "transport/address.h"

#include <gtest/gtest.h>

namespace smddp {
namespace {

TEST(AddressTest, ReadsAndWritesBothFamilies) {
  for (const char* text : {"10.1.2.3:4321", "127.0.0.1:0", "[::1]:65535",
                           "[2001:db8::7]:80", "[fe80::1%lo]:9"}) {
    const auto address = ResolveAddress(text);
    ASSERT_TRUE(address.ok()) << address.status().message();
    EXPECT_EQ(address->Text(), text);
  }
  auto address = ResolveAddress("[::1]:7");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->port(), 7);
  address->set_port(40'000);
  EXPECT_EQ(address->Text(), "[::1]:40000");
}

TEST(AddressTest, LooksNamesUp) {
  const auto address = ResolveAddress("localhost:5");
  ASSERT_TRUE(address.ok()) << address.status().message();
  EXPECT_TRUE(address->is_loopback());
  EXPECT_EQ(address->port(), 5);
}

TEST(AddressTest, KnowsLoopback) {
  const auto loopback = [](const char* text) {
    return ResolveAddress(text)->is_loopback();
  };
  EXPECT_TRUE(loopback("127.0.1.1:1"));
  EXPECT_TRUE(loopback("[::1]:1"));
  EXPECT_TRUE(loopback("[::ffff:127.0.0.1]:1"));
  EXPECT_FALSE(loopback("128.0.0.1:1"));
  EXPECT_FALSE(loopback("[2001:db8::1]:1"));
}

TEST(AddressTest, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "10.0.0.1", ":80", "::1:80", "[::1]", "[]:80", "[::1:80",
                           "host:", "host:x", "host:65536", "host:-1", "host:80x"}) {
    const auto address = ResolveAddress(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_NE(address.status().message().find("host:port"), std::string::npos);
  }
  const auto unknown = ResolveAddress("no-such-host.invalid:80");
  ASSERT_FALSE(unknown.ok());
  EXPECT_NE(unknown.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST(AddressTest, FindsAnInterface) {
  const auto loopback = AddressOfInterface("lo");
  ASSERT_TRUE(loopback.ok()) << loopback.status().message();
  EXPECT_EQ(loopback->Text(), "127.0.0.1:0");  // IPv4 goes first.
  const auto missing = AddressOfInterface("nope7");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.status().message().find("'nope7'"), std::string::npos);
  EXPECT_NE(missing.status().message().find("lo"), std::string::npos);
}

TEST(AddressTest, FindsTheWayToAPeer) {
  const auto v4 = AddressTowards(*ResolveAddress("127.0.0.9:80"));
  ASSERT_TRUE(v4.ok()) << v4.status().message();
  EXPECT_EQ(v4->Text(), "127.0.0.1:0");
  const auto any_port = AddressTowards(*ResolveAddress("127.0.0.1:0"));
  EXPECT_TRUE(any_port.ok());
}

}  // namespace
}  // namespace smddp
