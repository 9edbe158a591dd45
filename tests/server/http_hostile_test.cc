// Clients that are slow, vanish, or want more than they may have.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/raw_client.h"

namespace ddtree {
namespace {

using std::chrono::milliseconds;

TEST(HttpHostile, ASlowHeadIsCutOff) {
  HttpOptions options;
  options.limits.head_time = milliseconds(50);
  options.limits.linger_time = milliseconds(50);
  ToyServer toy(options);
  RawClient silent(toy.port());
  RawClient slow(toy.port());
  slow.send("GET /hello HTTP/1.1\r\nHost: loc");
  EXPECT_EQ(slow.answer().status, 408);
  EXPECT_TRUE(silent.closed());
  // It is the whole head that must arrive in time, not the next byte.
  RawClient dripping(toy.port());
  while (dripping.send("x")) std::this_thread::sleep_for(milliseconds(5));
}

TEST(HttpHostile, ASlowBodyIsCutOff) {
  HttpOptions options;
  options.limits.body_time = milliseconds(50);
  ToyServer toy(options);
  RawClient client(toy.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}");
  EXPECT_EQ(client.answer().status, 408);
  EXPECT_EQ(toy.handled, 0);
}

TEST(HttpHostile, AnIdleConnectionIsClosed) {
  HttpOptions options;
  options.limits.idle_time = milliseconds(50);
  ToyServer toy(options);
  RawClient client(toy.port());
  client.send(get("/hello"));
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_TRUE(client.closed());
}

TEST(HttpHostile, ABodyInChunksHasTheSameLimit) {
  HttpOptions options;
  options.limits.body_bytes = 1 << 20;
  ToyServer toy(options);
  RawClient client(toy.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "10000\r\n" + std::string(0x10000, ' ') + "\r\n";
  for (int i = 0; i < 32; ++i)
    if (!client.send(chunk)) break;
  EXPECT_EQ(client.answer().status, 413);
  EXPECT_EQ(toy.handled, 0);
  RawClient exact(toy.port());
  exact.send(post("/echo", std::string(1 << 20, ' ')));
  EXPECT_EQ(exact.answer().body.size(), size_t{1} << 20);
}

TEST(HttpHostile, AnEndlessHeadIsCutOff) {
  ToyServer toy;
  RawClient client(toy.port());
  const std::string more(1 << 16, 'x');
  int sent = 0;
  while (sent < 64 && client.send(more)) ++sent;
  EXPECT_EQ(client.answer().status, 414);
}

TEST(HttpHostile, AVanishedClientIsReported) {
  ToyServer toy;
  {
    RawClient client(toy.port());
    client.send(get("/hang"));
    EXPECT_EQ(client.answer(true).status, 200);
  }
  toy.await_gone(1);
  RawClient reset(toy.port());
  reset.send(get("/hang"));
  EXPECT_EQ(reset.answer(true).status, 200);
  reset.reset();
  toy.await_gone(2);
  RawClient half(toy.port());
  half.send(get("/hang"));
  EXPECT_EQ(half.answer(true).status, 200);
  half.end_sending();
  toy.await_gone(3);
  toy.await_done(3);
  const std::vector<HttpDone> done = toy.done();
  for (const HttpDone& one : done) EXPECT_TRUE(one.gone);
}

TEST(HttpHostile, AVanishedClientIsSeenBehindPipelinedRequests) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/hang") + get("/hello") + "GET /hel");
  EXPECT_EQ(client.answer(true).status, 200);
  client.end_sending();
  toy.await_gone(1);
  toy.await_done(1);
  EXPECT_EQ(toy.handled, 1);
}

TEST(HttpHostile, AStreamIsNotBufferedWithoutEnd) {
  HttpOptions options;
  options.limits.outbound_bytes = 64 << 10;
  options.limits.kernel_bytes = 16 << 10;
  ToyServer toy(options);
  RawClient client(toy.port(), 4096);
  client.send(get("/flood"));
  toy.await_gone(1);
  toy.await_done(1);
  EXPECT_TRUE(toy.done()[0].gone);
  EXPECT_LT(toy.done()[0].bytes, 1 << 20);
}

TEST(HttpHostile, AReplyNobodyReadsIsGivenUp) {
  HttpOptions options;
  options.limits.write_time = milliseconds(50);
  options.limits.kernel_bytes = 16 << 10;
  ToyServer toy(options);
  RawClient client(toy.port(), 4096);
  client.send(post("/echo", std::string(8 << 20, ' ')));
  toy.await_done(1);
  EXPECT_TRUE(toy.done()[0].gone);
}

TEST(HttpHostile, SoManyConnections) {
  HttpOptions options;
  options.limits.connections = 2;
  ToyServer toy(options);
  RawClient first(toy.port());
  auto second = std::make_unique<RawClient>(toy.port());
  first.send(get("/hello"));
  EXPECT_EQ(first.answer().status, 200);
  second->send(get("/hello"));
  EXPECT_EQ(second->answer().status, 200);
  EXPECT_EQ(RawClient(toy.port()).answer().status, 503);
  second.reset();
  // The place is free once the server has seen the client go.
  Answer answer;
  while (answer.status != 200) {
    RawClient third(toy.port());
    third.send(get("/hello"));
    answer = third.answer();
    ASSERT_TRUE(answer.status == 200 || answer.status == 503 || answer.status == 0);
  }
}

// Streams that wait and streams that nobody reads take nothing from the others.
TEST(HttpHostile, IdleAndSlowClientsDoNotDelayHealth) {
  constexpr int kEach = 64;
  HttpOptions options;
  options.limits.kernel_bytes = 16 << 10;
  ToyServer toy(options);
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < kEach; ++i) {
    clients.push_back(std::make_unique<RawClient>(toy.port()));
    clients.back()->send(get("/hang"));
    clients.push_back(std::make_unique<RawClient>(toy.port(), 4096));
    clients.back()->send(get("/stream?30000"));
  }
  while (toy.handled < 2 * kEach) std::this_thread::yield();
  const auto start = std::chrono::steady_clock::now();
  RawClient probe(toy.port());
  probe.send(get("/health"));
  EXPECT_EQ(probe.answer().status, 200);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took, std::chrono::seconds(2));
  RecordProperty("health_us", static_cast<int>(std::chrono::duration_cast<std::chrono::microseconds>(took).count()));
  clients.clear();
  toy.await_gone(kEach);
}

}  // namespace
}  // namespace ddtree
