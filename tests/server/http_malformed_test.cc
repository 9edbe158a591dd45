// What must never be taken for a request. Each case is sent to a server with its own connection; it answers with the
// status that is due or just closes, and goes on serving others.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/raw_client.h"

namespace ddtree {
namespace {

using std::string_literals::operator""s;

struct Malformed {
  const char* name;
  std::string bytes;
  int status;  // 0: closed without an answer
};

std::string post_chunked(const std::string& chunks, const std::string& headers = "") {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n" +
         headers + "\r\n" + chunks;
}

std::string many_headers(int count) {
  std::string headers;
  for (int i = 0; i < count; ++i) headers += "X-" + std::to_string(i) + ": 1\r\n";
  return headers;
}

const std::string kPostHead = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";

const std::vector<Malformed> kCases = {
    {"empty request line", "\r\n\r\n", 400},
    {"no target", "GET\r\n\r\n", 400},
    {"no version", "GET /hello\r\nHost: localhost\r\n\r\n", 400},
    {"two spaces", "GET  /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"space in the target", "GET /hello world HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"leading space", " GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"lower-case version", "GET /hello http/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"version 1.2", "GET /hello HTTP/1.2\r\nHost: localhost\r\n\r\n", 505},
    {"version 2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
    {"version 0.9", "GET /hello HTTP/0.9\r\n\r\n", 505},
    {"absolute target", "GET http://localhost/hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"authority target", "CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"star with GET", "GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"fragment in the target", "GET /hello#x HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"byte above 127 in the target", "GET /h\xc3\xa4llo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"control byte in the target", "GET /h\x01llo HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"bracket in the method", "G[T /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"long method", std::string(17, 'G') + " /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", 400},
    {"NUL", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n"s, 400},
    {"bare LF after the request line", "GET /hello HTTP/1.1\nHost: localhost\r\n\r\n", 400},
    {"bare LF in the headers", "GET /hello HTTP/1.1\r\nHost: localhost\nX: 1\r\n\r\n", 400},
    {"bare LF at the end", "GET /hello HTTP/1.1\r\nHost: localhost\r\n\n", 400},
    {"bare CR", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n", 400},
    {"folded header", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n", 400},
    {"folded first header", "GET /hello HTTP/1.1\r\n Host: localhost\r\n\r\n", 400},
    {"space before the colon", "GET /hello HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
    {"header without a colon", "GET /hello HTTP/1.1\r\nHost: localhost\r\nnonsense\r\n\r\n", 400},
    {"header without a name", "GET /hello HTTP/1.1\r\nHost: localhost\r\n: x\r\n\r\n", 400},
    {"control byte in a value", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: \x07\r\n\r\n", 400},
    {"no Host", "GET /hello HTTP/1.1\r\n\r\n", 400},
    {"two Hosts", "GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400},
    {"empty Host", "GET /hello HTTP/1.1\r\nHost:\r\n\r\n", 400},
    {"Host with a path", "GET /hello HTTP/1.1\r\nHost: localhost/x\r\n\r\n", 400},
    {"two keys", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: a\r\nX-Api-Key: b\r\n\r\n", 400},
    {"too many headers", "GET /hello HTTP/1.1\r\nHost: localhost\r\n" + many_headers(64) + "\r\n", 431},
    {"long header", "GET /hello HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(20'000, 'x') + "\r\n\r\n", 431},
    {"long header without end", "GET /hello HTTP/1.1\r\nX: " + std::string(20'000, 'x'), 431},
    {"long target", "GET /" + std::string(20'000, 'x') + " HTTP/1.1\r\n\r\n", 414},
    {"length twice", kPostHead + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400},
    {"two lengths in one", kPostHead + "Content-Length: 2, 2\r\n\r\n{}", 400},
    {"negative length", kPostHead + "Content-Length: -2\r\n\r\n{}", 400},
    {"signed length", kPostHead + "Content-Length: +2\r\n\r\n{}", 400},
    {"hexadecimal length", kPostHead + "Content-Length: 0x2\r\n\r\n{}", 400},
    {"empty length", kPostHead + "Content-Length:\r\n\r\n{}", 400},
    {"length of 20 digits", kPostHead + "Content-Length: 18446744073709551618\r\n\r\n{}", 413},
    {"length beyond the limit", kPostHead + "Content-Length: 9000000\r\n\r\n{}", 413},
    {"no length", kPostHead + "\r\n", 411},
    {"length and chunks", post_chunked("2\r\n{}\r\n0\r\n\r\n", "Content-Length: 2\r\n"), 400},
    {"chunks twice", post_chunked("2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"), 400},
    {"gzip and chunks", kPostHead + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
    {"unknown encoding", kPostHead + "Transfer-Encoding: identity\r\n\r\n", 501},
    {"chunked by another spelling", kPostHead + "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 501},
    {"chunks in HTTP/1.0",
     "POST /echo HTTP/1.0\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {"negative chunk", post_chunked("-2\r\n{}\r\n0\r\n\r\n"), 400},
    {"signed chunk", post_chunked("+2\r\n{}\r\n0\r\n\r\n"), 400},
    {"chunk with 0x", post_chunked("0x2\r\n{}\r\n0\r\n\r\n"), 400},
    {"chunk of 17 digits", post_chunked("10000000000000002\r\n{}\r\n0\r\n\r\n"), 400},
    {"chunk without size", post_chunked("\r\n{}\r\n0\r\n\r\n"), 400},
    {"chunk longer than it says", post_chunked("2\r\n{}x\r\n0\r\n\r\n"), 400},
    {"chunk ended by LF", post_chunked("2\n{}\r\n0\r\n\r\n"), 400},
    {"chunk beyond the limit", post_chunked("900000\r\n"), 413},
    {"endless chunk extension", post_chunked("2;x=" + std::string(40'000, 'x')), 400},
    {"bare LF in a chunk extension", post_chunked("2;x\n\r\n{}\r\n0\r\n\r\n"), 400},
    {"endless trailer", post_chunked("0\r\nX: " + std::string(40'000, 'x')), 400},
    {"other expectation", kPostHead + "Content-Length: 2\r\nExpect: payment\r\n\r\n{}", 417},
    {"body with GET", "GET /hello HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}", 400},
    {"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"s, 400},
    {"SSH", "SSH-2.0-OpenSSH_9.2\r\n\r\n", 400},
};

TEST(HttpMalformed, EveryCaseIsRefusedAndOthersAreServed) {
  ToyServer toy;
  for (const Malformed& test : kCases) {
    RawClient client(toy.port());
    client.send(test.bytes);
    const Answer answer = client.answer();
    EXPECT_EQ(answer.status, test.status) << test.name;
    EXPECT_TRUE(answer.body.find("\"error\"") != std::string::npos) << test.name << ": " << answer.body;
  }
  EXPECT_EQ(toy.handled, 0);
  RawClient client(toy.port());
  client.send(get("/hello"));
  EXPECT_EQ(client.answer().body, "hello");
}

// Sent a byte at a time, the same bytes give the same answers: no limit depends on how they are cut.
TEST(HttpMalformed, ByteAtATime) {
  ToyServer toy;
  for (const Malformed& test : kCases) {
    if (test.bytes.size() > 400) continue;
    RawClient client(toy.port());
    for (const char byte : test.bytes)
      if (!client.send(std::string_view(&byte, 1))) break;
    EXPECT_EQ(client.answer().status, test.status) << test.name;
  }
  EXPECT_EQ(toy.handled, 0);
}

TEST(HttpMalformed, ARefusedHeadEndsTheConnection) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send("GET /hello HTTP/1.1\nHost: localhost\r\n\r\n" + get("/hello"));
  EXPECT_EQ(client.answer().status, 400);
  client.end_sending();
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(toy.handled, 0);
}

}  // namespace
}  // namespace ddtree
