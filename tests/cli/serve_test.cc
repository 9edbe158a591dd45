// ddtree serve as its operators see it: signals, exit statuses, keys, the log.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/program.h"
#include "server/raw_client.h"

namespace ddtree {
namespace {

// A server in the background.
class Served {
 public:
  explicit Served(std::vector<std::string> flags) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    flags.insert(flags.begin(), {"serve", kDemo, "--port", "0", "--threads", "1"});
    std::vector<char*> argv = {const_cast<char*>(DDTREE_PROGRAM)};
    for (const std::string& flag : flags) argv.push_back(const_cast<char*>(flag.c_str()));
    argv.push_back(nullptr);
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(ends[1]);
    log_ = fdopen(ends[0], "r");
    port = static_cast<uint16_t>(await("listening"));
  }
  ~Served() {
    if (child_ > 0) kill(child_, SIGKILL), wait();
    if (log_ != nullptr) close_log();
  }

  // Reads the log up to this event; its port, if it has one.
  int64_t await(const std::string& event) {
    char* line = nullptr;
    size_t room = 0;
    int64_t port = 0;
    bool found = false;
    while (!found && getline(&line, &room, log_) > 0) {
      lines += line;
      const auto document = parse_json(line, "log");
      EXPECT_TRUE(document.ok()) << line;
      if (!document.ok()) continue;
      found = *document->root().get_string("event") == event;
      if (found) port = document->root().find_int("port")->value_or(0);
    }
    std::free(line);
    EXPECT_TRUE(found) << event << " is not in the log:\n" << lines;
    return port;
  }
  void close_log() { std::fclose(std::exchange(log_, nullptr)); }
  void signal(int number) { kill(child_, number); }
  // The exit status once it has ended, 128 + n where signal n ended it; the rest of its log is in `lines`.
  int wait() {
    int status = 0;
    waitpid(std::exchange(child_, -1), &status, 0);
    for (int c; log_ != nullptr && (c = std::fgetc(log_)) != EOF;) lines += static_cast<char>(c);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  uint16_t port = 0;
  std::string lines;

 private:
  pid_t child_ = -1;
  std::FILE* log_ = nullptr;
};

std::string completion(int tokens, const std::string& headers = "") {
  return post("/v1/completions",
              R"({"prompt":"def secret_prompt(","temperature":0,"ignore_eos":true,"stream":true,"max_tokens":)" +
                  std::to_string(tokens) + "}",
              headers);
}

Answer ask(uint16_t port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.answer();
}

TEST(Serve, AnswersAndStopsOnSigterm) {
  Served served({});
  served.await("ready");
  const Answer answer = ask(served.port, completion(8));
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.body.ends_with("data: [DONE]\n\n")) << answer.body;
  EXPECT_EQ(ask(served.port, get("/readyz")).status, 200);
  EXPECT_NE(ask(served.port, get("/metrics")).body.find("\nddtree_generation_tokens_total 8\n"), std::string::npos);
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 0);
  EXPECT_NE(served.lines.find(R"("completion_tokens":8)"), std::string::npos) << served.lines;
  EXPECT_EQ(served.lines.find("secret_prompt"), std::string::npos) << served.lines;
}

TEST(Serve, ServesOnWhenNobodyReadsTheLog) {
  Served served({});
  served.await("ready");
  served.close_log();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(served.port, completion(2)).status, 200);
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 0);
}

TEST(Serve, RequestsThatRunMayEnd) {
  Served served({});
  served.await("ready");
  RawClient client(served.port);
  client.send(completion(300));
  EXPECT_EQ(client.line(), "HTTP/1.1 200 OK");
  served.signal(SIGTERM);
  served.await("draining");
  EXPECT_EQ(ask(served.port, get("/livez")).status, 200);
  EXPECT_EQ(ask(served.port, get("/readyz")).status, 503);
  EXPECT_EQ(ask(served.port, completion(1)).status, 503);
  const std::string stream = client.rest();
  EXPECT_NE(stream.find(R"("finish_reason":"length")"), std::string::npos) << stream;
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos) << stream;
  EXPECT_EQ(served.wait(), 0);
  EXPECT_NE(served.lines.find(R"("all_requests_ended":true)"), std::string::npos);
}

TEST(Serve, RequestsThatRunTooLongAreToldSo) {
  Served served({"--drain-timeout", "0"});
  served.await("ready");
  RawClient client(served.port);
  client.send(completion(8000));
  EXPECT_EQ(client.line(), "HTTP/1.1 200 OK");
  served.signal(SIGINT);
  const std::string stream = client.rest();
  EXPECT_NE(stream.find(R"("code":"draining")"), std::string::npos) << stream;
  EXPECT_NE(stream.find("data: [DONE]"), std::string::npos) << stream;
  EXPECT_EQ(served.wait(), 0);
  EXPECT_NE(served.lines.find(R"("all_requests_ended":false)"), std::string::npos);
}

TEST(Serve, TheSecondSignalEndsIt) {
  Served served({});
  served.await("ready");
  RawClient client(served.port);
  client.send(completion(8000));
  EXPECT_EQ(client.line(), "HTTP/1.1 200 OK");
  served.signal(SIGTERM);
  served.await("draining");
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 130);
}

TEST(Serve, AVanishedClientFreesItsPlace) {
  Served served({"--max-num-seqs", "1", "--no-prefix-cache"});
  served.await("ready");
  {
    RawClient client(served.port);
    client.send(completion(8000));
    EXPECT_EQ(client.line(), "HTTP/1.1 200 OK");
  }
  served.await("request");
  EXPECT_NE(served.lines.find(R"("client_gone":true)"), std::string::npos);
  // The only place was freed: otherwise this would wait for 8000 tokens.
  EXPECT_EQ(ask(served.port, completion(2)).status, 200);
  const auto used = [&] { return ask(served.port, get("/metrics")).body.find("\nddtree_kv_pages_used 0\n"); };
  while (used() == std::string::npos) usleep(1000);
}

TEST(Serve, KeysAreReadAnew) {
  const std::string keys = temporary_file("keys", "first\n");
  Served served({"--api-key-file", keys, "--metrics-port", "0"});
  const auto metrics_port = static_cast<uint16_t>(served.await("metrics"));
  served.await("ready");
  const std::string first = "X-Api-Key: first\r\n", second = "Authorization: Bearer second\r\n";
  for (const char* path : {"/v1/models", "/metrics", "/version", "/tokenize", "/unknown"})
    EXPECT_EQ(ask(served.port, get(path)).status, 401) << path;
  for (const char* path : {"/livez", "/readyz", "/health"}) EXPECT_EQ(ask(served.port, get(path)).status, 200) << path;
  EXPECT_EQ(ask(metrics_port, get("/metrics")).status, 200);
  EXPECT_EQ(ask(metrics_port, get("/v1/models")).status, 404);
  EXPECT_EQ(ask(served.port, get("/v1/models", first)).status, 200);
  std::ofstream(keys) << "second\n";
  served.signal(SIGHUP);
  served.await("keys reloaded");
  EXPECT_EQ(ask(served.port, get("/v1/models", second)).status, 200);
  EXPECT_EQ(ask(served.port, get("/v1/models", first)).status, 401);
  std::ofstream(keys) << "not a key\n";
  served.signal(SIGHUP);
  served.await("keys not reloaded");
  EXPECT_EQ(ask(served.port, get("/v1/models", second)).status, 200);
  served.signal(SIGTERM);
  EXPECT_EQ(served.wait(), 0);
  EXPECT_EQ(served.lines.find("second\""), std::string::npos);
}

TEST(Serve, RefusesWhatItShouldNotDo) {
  const auto status = [](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"serve", "--port", "0"});
    return run_program(flags).status;
  };
  EXPECT_EQ(status({kDemo, "--host", "0.0.0.0"}), 2);
  EXPECT_EQ(status({kDemo, "--host", "name.invalid"}), 2);
  EXPECT_EQ(status({kDemo, "--chat-template", "unheard-of"}), 2);
  EXPECT_EQ(status({kDemo, "--spec", "sometimes"}), 2);
  EXPECT_EQ(status({kDemo, "--api-key", "a b"}), 2);
  EXPECT_EQ(status({kDemo, "--unknown-flag"}), 2);
  EXPECT_EQ(status({kDemo, "--api-key-file", "/nonexistent"}), 1);
  EXPECT_EQ(status({"/nonexistent"}), 1);
}

}  // namespace
}  // namespace ddtree
