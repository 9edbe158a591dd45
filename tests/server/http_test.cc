// What well-behaved clients rely on: framing, connections that stay open, streams, health while loading and draining.
#include <gtest/gtest.h>
#include <unistd.h>

#include <set>
#include <string>

#include "server/http_parser.h"
#include "server/raw_client.h"

namespace ddtree {
namespace {

using std::chrono::milliseconds;

std::string chunked_post(std::string_view chunks) {
  return "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         "Transfer-Encoding: chunked\r\n\r\n" +
         std::string(chunks);
}

TEST(Http, AnswersAndKeepsTheConnection) {
  ToyServer toy;
  RawClient client(toy.port());
  for (int i = 0; i < 3; ++i) {
    client.send(get("/hello"));
    const Answer hello = client.answer();
    EXPECT_EQ(hello.status, 200);
    EXPECT_EQ(hello.body, "hello");
    EXPECT_EQ(hello.header("content-length"), "5");
    EXPECT_EQ(hello.header("connection"), "");
    client.send(post("/echo", R"({"a":1})"));
    EXPECT_EQ(client.answer().body, R"({"a":1})");
  }
}

TEST(Http, ChunkedBodyWithExtensionAndTrailer) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(chunked_post("3\r\n{\"a\r\n4;name=value\r\n\":1}\r\n0\r\nX-Checksum: 1\r\n\r\n") + get("/hello"));
  EXPECT_EQ(client.answer().body, R"({"a":1})");
  EXPECT_EQ(client.answer().body, "hello");
}

TEST(Http, ByteAtATime) {
  ToyServer toy;
  RawClient client(toy.port());
  for (const std::string& request : {post("/echo", "[1,2]"), chunked_post("2\r\n[1\r\n3\r\n,2]\r\n0\r\n\r\n")}) {
    for (const char byte : request) client.send(std::string_view(&byte, 1));
    EXPECT_EQ(client.answer().body, "[1,2]");
  }
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/items/1") + get("/stream?3") + post("/echo", "{}") + get("/items/2"));
  EXPECT_EQ(client.answer().body, "/items/1");
  EXPECT_EQ(client.answer().body, "data: {\"n\":0}\n\ndata: {\"n\":1}\n\ndata: {\"n\":2}\n\n");
  EXPECT_EQ(client.answer().body, "{}");
  EXPECT_EQ(client.answer().body, "/items/2");
}

TEST(Http, AHundredKilobytesOfPipelinedRequests) {
  ToyServer toy;
  RawClient client(toy.port());
  std::string all;
  for (int i = 0; i < 90; ++i) all += post("/echo", "\"" + std::string(1000, 'x') + "\"");
  client.send(all);
  for (int i = 0; i < 90; ++i) EXPECT_EQ(client.answer().body.size(), 1002u) << i;
}

TEST(Http, HalfClosedClientGetsWhatIsAnsweredAtOnce) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/hello") + get("/items/9"));
  client.end_sending();
  EXPECT_EQ(client.answer().body, "hello");
  EXPECT_EQ(client.answer().body, "/items/9");
  EXPECT_TRUE(client.closed());
}

TEST(Http, ConnectionsEndWhereTheyShould) {
  ToyServer toy;
  RawClient asked(toy.port());
  asked.send(get("/hello", "Connection: close\r\n"));
  EXPECT_EQ(asked.answer().header("connection"), "close");
  EXPECT_TRUE(asked.closed());

  RawClient old(toy.port());
  old.send("GET /hello HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.answer().header("connection"), "close");
  EXPECT_TRUE(old.closed());

  RawClient kept(toy.port());
  for (int i = 0; i < 2; ++i) {
    kept.send("GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.answer().header("connection"), "keep-alive");
  }
}

TEST(Http, AConnectionServesSoManyRequests) {
  HttpOptions options;
  options.limits.requests_per_connection = 3;
  ToyServer toy(options);
  RawClient client(toy.port());
  client.send(get("/hello") + get("/hello") + get("/hello") + get("/hello"));
  EXPECT_EQ(client.answer().header("connection"), "");
  EXPECT_EQ(client.answer().header("connection"), "");
  EXPECT_EQ(client.answer().header("connection"), "close");
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(toy.handled, 3);
}

TEST(Http, HeadHasTheLengthAndNoBody) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send("HEAD /hello HTTP/1.1\r\nHost: localhost\r\n\r\n" + get("/items/1"));
  const Answer head = client.answer(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "5");
  EXPECT_EQ(client.answer().body, "/items/1");
}

TEST(Http, RoutesAreExact) {
  ToyServer toy;
  RawClient client(toy.port());
  for (const char* path : {"/Hello", "/hello/", "/items", "/items/", "/items/1/2", "//hello", "/%68ello", "/echo/.."}) {
    client.send(get(path));
    EXPECT_EQ(client.answer().status, 404) << path;
  }
  client.send(get("/echo"));
  const Answer wrong = client.answer();
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST, OPTIONS");
  client.send(get("/hello?a=b"));
  EXPECT_EQ(client.answer().status, 200);
}

TEST(Http, BodiesAreJson) {
  ToyServer toy;
  RawClient client(toy.port());
  const std::string line = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";
  for (const char* type : {"", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n",
                           "Content-Type: application/jsonx\r\n", "Content-Type: multipart/form-data; boundary=x\r\n",
                           "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"}) {
    RawClient refused(toy.port());
    refused.send(line + type + "\r\n{}");
    EXPECT_EQ(refused.answer().status, 415) << type;
  }
  for (const char* type : {"application/json", "Application/JSON", "application/json; charset=utf-8"}) {
    client.send(line + "Content-Type: " + type + "\r\n\r\n{}");
    EXPECT_EQ(client.answer().body, "{}") << type;
  }
}

TEST(Http, RequestIds) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/hello", "X-Request-Id: my-id.1\r\n"));
  EXPECT_EQ(client.answer().header("x-request-id"), "my-id.1");
  std::set<std::string> made;
  for (const std::string& bad : {std::string("a b"), std::string(129, 'x'), std::string("h\xc3\xa4")}) {
    client.send(get("/hello", "X-Request-Id: " + bad + "\r\n"));
    made.insert(client.answer().header("x-request-id"));
  }
  EXPECT_EQ(made.size(), 3u);
  for (const std::string& id : made) EXPECT_TRUE(id.starts_with("req-") && id.size() == 26) << id;
}

TEST(Http, ContinueIsSaidOnlyToThoseWhoMay) {
  HttpOptions options;
  ASSERT_TRUE(options.keys.add("secret", "test").ok());
  ToyServer toy(options);
  const std::string head =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 2\r\nExpect: 100-continue\r\n";
  RawClient client(toy.port());
  client.send(head + "Authorization: Bearer secret\r\n\r\n");
  EXPECT_EQ(client.answer().status, 100);
  client.send("{}");
  EXPECT_EQ(client.answer().body, "{}");
  RawClient other(toy.port());
  other.send(head + "\r\n");
  EXPECT_EQ(other.answer().status, 401);
  EXPECT_TRUE((other.end_sending(), other.closed()));
}

TEST(Http, Streams) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/stream?2000"));
  const Answer stream = client.answer();
  EXPECT_EQ(stream.header("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(stream.header("cache-control"), "no-cache");
  EXPECT_EQ(stream.header("x-accel-buffering"), "no");
  std::string expected;
  for (int i = 0; i < 2000; ++i) expected += "data: {\"n\":" + std::to_string(i) + "}\n\n";
  EXPECT_EQ(stream.body, expected);
  EXPECT_TRUE(stream.complete);
  client.send(get("/stream?0"));
  EXPECT_TRUE(client.answer().complete);
  client.send(get("/hello"));
  EXPECT_EQ(client.answer().body, "hello");
  toy.await_done(3);
  EXPECT_EQ(toy.gone(), 0);
}

TEST(Http, StreamsToHttp10EndWithTheConnection) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send("GET /stream?2 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const Answer head = client.answer(true);
  EXPECT_EQ(head.header("transfer-encoding"), "");
  EXPECT_EQ(head.header("connection"), "close");
  EXPECT_EQ(client.rest(), "data: {\"n\":0}\n\ndata: {\"n\":1}\n\n");
}

TEST(Http, SilentStreamsSayThatTheyLive) {
  HttpOptions options;
  options.limits.keep_alive = milliseconds(20);
  ToyServer toy(options);
  RawClient client(toy.port());
  client.send(get("/hang"));
  EXPECT_EQ(client.answer(true).status, 200);
  int comments = 0;
  while (comments < 3) comments += client.line() == ": ka";
}

TEST(Http, ADroppedReplyIs500) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/drop") + get("/hello"));
  const Answer dropped = client.answer();
  EXPECT_EQ(dropped.status, 500);
  EXPECT_NE(dropped.body.find(R"("type":"server_error")"), std::string::npos);
  EXPECT_EQ(client.answer().body, "hello");
}

TEST(Http, LoadingReadyDraining) {
  ToyServer toy({}, false);
  RawClient client(toy.port());
  client.send(get("/hello"));
  const Answer loading = client.answer();
  EXPECT_EQ(loading.status, 503);
  EXPECT_NE(loading.body.find(R"("code":"loading")"), std::string::npos);
  EXPECT_EQ(loading.header("retry-after"), "1");
  client.send(get("/health"));
  EXPECT_EQ(client.answer().status, 200);

  toy.server().ready(toy.routes());
  client.send(get("/hang"));
  EXPECT_EQ(client.answer(true).status, 200);
  EXPECT_FALSE(toy.server().wait_idle(milliseconds(1)));

  toy.server().drain();
  RawClient late(toy.port());
  late.send(get("/hello"));
  const Answer draining = late.answer();
  EXPECT_EQ(draining.status, 503);
  EXPECT_EQ(draining.header("connection"), "close");
  EXPECT_NE(draining.body.find(R"("code":"draining")"), std::string::npos);
  RawClient probe(toy.port());
  probe.send(get("/health"));
  EXPECT_EQ(probe.answer().status, 200);
  client.reset();
  toy.await_gone(1);
  EXPECT_TRUE(toy.server().wait_idle(milliseconds(20'000)));
}

TEST(Http, WhatWasDoneIsReported) {
  ToyServer toy;
  RawClient client(toy.port());
  client.send(get("/items/secret-name", "X-Request-Id: one\r\n") + get("/unknown-name"));
  client.answer();
  client.answer();
  toy.await_done(2);
  const std::vector<HttpDone> done = toy.done();
  EXPECT_EQ(done[0].request_id, "one");
  EXPECT_EQ(done[0].route, "/items/*");
  EXPECT_EQ(done[0].status, 200);
  EXPECT_FALSE(done[0].gone);
  EXPECT_GT(done[0].bytes, 100);
  EXPECT_EQ(done[1].route, "other");
  EXPECT_EQ(done[1].status, 404);
}

TEST(Http, UnixSocket) {
  const std::string path = testing::TempDir() + "ddtree_http_" + std::to_string(getpid()) + ".sock";
  HttpOptions options;
  options.host = "unix:" + path;
  {
    ToyServer toy(options);
    RawClient client(path);
    client.send(get("/hello"));
    EXPECT_EQ(client.answer().body, "hello");
    EXPECT_FALSE(HttpServer::listen(options, {}).ok()) << "two servers at one path";
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
  options.host = "unix:" + std::string(200, 'x');
  EXPECT_FALSE(HttpServer::listen(options, {}).ok());
}

TEST(Http, StopEndsEverything) {
  std::shared_ptr<HttpReply> kept;
  {
    HttpOptions options;
    options.port = 0;
    auto server = HttpServer::listen(options, {});
    ASSERT_TRUE(server.ok());
    Route keep = {"GET", "/keep", false, false, [&](auto, auto reply) { kept = reply; }};
    (*server)->ready({keep});
    std::thread thread([&] { (*server)->run(); });
    RawClient client((*server)->port());
    RawClient idle((*server)->port());
    client.send(get("/keep", "Connection: close\r\n"));
    while ((*server)->wait_idle(milliseconds(1))) std::this_thread::yield();
    (*server)->stop();
    thread.join();
    EXPECT_TRUE(idle.closed());
  }
  kept->start_stream();  // nobody is there
  kept->event("late");
  kept->on_gone([] {});
  kept->finish();
}

// However a request is cut into pieces, the parser makes the same of it.
TEST(HttpParser, EveryPartitionIsTheSame) {
  const std::vector<std::pair<std::string, std::string>> requests = {
      {post("/echo?x=1", "{\"a\":[1,2]}"), "{\"a\":[1,2]}"},
      {chunked_post("3\r\n{\"a\r\n4;e\r\n\":1}\r\n0\r\nT: 1\r\n\r\n"), "{\"a\":1}"},
      {chunked_post("0\r\n\r\n"), ""}};
  for (const auto& [bytes, body] : requests) {
    for (size_t first = 1; first < bytes.size(); ++first) {
      for (size_t step : {size_t{1}, size_t{7}, bytes.size()}) {
        HttpParser parser{HttpLimits{}};
        std::string in = bytes.substr(0, first);
        size_t sent = first;
        for (;;) {
          const size_t used = parser.feed(in);
          in.erase(0, used);
          if (parser.state() == HttpParser::State::kDone) break;
          if (used > 0 && !in.empty()) continue;
          ASSERT_LT(sent, bytes.size());
          in += bytes.substr(sent, step);
          sent = std::min(sent + step, bytes.size());
        }
        const HttpRequest request = parser.take();
        ASSERT_EQ(request.path, "/echo");
        ASSERT_EQ(request.body, body);
        ASSERT_EQ(request.header("t"), nullptr) << "a trailer is no header";
      }
    }
  }
}

}  // namespace
}  // namespace ddtree
