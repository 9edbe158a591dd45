// Health, watchdog, the engine's gate and what is logged.

#include "server/lifecycle.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "server/engine_gate.h"
#include "server/raw_client.h"

namespace ddtree {
namespace {

using std::chrono::seconds;

TEST(Watchdog, BarksAtWorkWithoutSteps) {
  const auto start = Watchdog::Clock::now();
  Watchdog dog(seconds(10));
  EngineLoad load;
  load.since = start;
  EXPECT_FALSE(dog.stalled(load, start + seconds(1000))) << "an idle engine may rest for ever";
  load.running = 1;
  EXPECT_FALSE(dog.stalled(load, start + seconds(1001))) << "work has only just come";
  EXPECT_FALSE(dog.stalled(load, start + seconds(1011)));
  EXPECT_TRUE(dog.stalled(load, start + seconds(1012)));
  load.since = start + seconds(1012);  // a step was completed after all
  EXPECT_FALSE(dog.stalled(load, start + seconds(1013)));
  EXPECT_FALSE(dog.stalled(load, start + seconds(1023)));
  EXPECT_TRUE(dog.stalled(load, start + seconds(1024)));
  load.running = 0;
  EXPECT_FALSE(dog.stalled(load, start + seconds(1025)));
  load.waiting = 1;
  EXPECT_FALSE(dog.stalled(load, start + seconds(1026)));
  EXPECT_EQ(dog.waiting(load, start + seconds(1030)), seconds(4));
}

class HealthTest : public testing::Test {
 protected:
  HealthTest() {
    HttpOptions options;
    options.port = 0;
    EXPECT_TRUE(options.keys.add("secret", "test").ok());
    server_ = *HttpServer::listen(options, life_.routes("1.2.3"));
    thread_ = std::thread([this] { server_->run(); });
  }
  ~HealthTest() override {
    server_->stop();
    thread_.join();
  }
  Answer ask(const std::string& path, const std::string& headers = "") {
    RawClient client(server_->port());
    client.send(get(path, headers));
    return client.answer();
  }
  void expect(int live, int ready, const std::string& state) {
    EXPECT_EQ(ask("/livez").status, live) << state;
    for (const char* path : {"/readyz", "/health"}) {
      const Answer answer = ask(path);
      EXPECT_EQ(answer.status, ready) << state;
      EXPECT_NE(answer.body.find('"' + state + '"'), std::string::npos) << answer.body;
      EXPECT_EQ(answer.header("retry-after"), ready == 503 ? "1" : "");
    }
  }

  Lifecycle life_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(HealthTest, FollowsTheServersLife) {
  expect(200, 503, "loading");
  life_.set_ready();
  server_->ready({});
  expect(200, 200, "ready");
  life_.set_stalled(true);
  expect(503, 503, "stalled");
  life_.set_stalled(false);
  expect(200, 200, "ready");
  life_.set_draining();
  server_->drain();
  expect(200, 503, "draining");
}

TEST_F(HealthTest, TheVersionNeedsAKey) {
  EXPECT_EQ(ask("/version").status, 401);
  EXPECT_EQ(ask("/version", "X-Api-Key: secret\r\n").body, R"({"version":"1.2.3"})");
}

TEST(EngineGate, WithoutAnEngine) {
  EngineGate gate;
  EXPECT_FALSE(gate.load().busy());
  const Result<RequestId> id = gate.submit({}, [](Event&&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.error().code, Code::kExhausted);
  gate.cancel(1);
  gate.close();
}

TEST(LogRequest, SaysWhatWasDoneAndNothingElse) {
  std::FILE* file = std::tmpfile();
  set_log_file(fileno(file));
  {
    ToyServer toy;
    RawClient client(toy.port());
    client.send(post("/echo?prompt=in-the-query", R"({"prompt":"in-the-body"})",
                     "Authorization: Bearer in-the-key\r\nX-Request-Id: id-1\r\nUser-Agent: in-the-agent\r\n"));
    client.answer();
    client.send(get("/items/in-the-path"));
    client.answer();
    toy.await_done(2);
    const std::vector<HttpDone> done = toy.done();
    for (const HttpDone& one : done) log_request(one);
  }
  set_log_file(STDERR_FILENO);
  std::rewind(file);
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_NE(text.find(R"("event":"request","id":"id-1","method":"POST","route":"/echo","status":200)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find(R"("route":"/items/*")"), std::string::npos) << text;
  EXPECT_EQ(text.find("in-the"), std::string::npos) << text;
}

}  // namespace
}  // namespace ddtree
