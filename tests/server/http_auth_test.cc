// Who may ask: keys, names of the host, web pages of other origins, addresses that are bound.
#include <gtest/gtest.h>

#include <unistd.h>
#include <fstream>
#include <string>

#include "server/auth.h"
#include "server/raw_client.h"

namespace ddtree {
namespace {

HttpOptions with_key(std::string_view key) {
  HttpOptions options;
  EXPECT_TRUE(options.keys.add(key, "test").ok());
  return options;
}

int status_of(uint16_t port, const std::string& request) {
  RawClient client(port);
  client.send(request);
  return client.answer().status;
}

std::string to_host(const std::string& host) { return "GET /hello HTTP/1.1\r\nHost: " + host + "\r\n\r\n"; }

TEST(ApiKeys, AcceptsExactlyItsKeys) {
  ApiKeys keys;
  EXPECT_TRUE(keys.empty());
  EXPECT_FALSE(keys.accepts(""));
  const std::string longest(ApiKeys::kMaxLength, 'k');
  for (const std::string& key : {std::string("first"), std::string("second"), longest})
    ASSERT_TRUE(keys.add(key, "test").ok());
  for (const std::string& key : {std::string("first"), std::string("second"), longest})
    EXPECT_TRUE(keys.accepts(key)) << key;
  for (const std::string& key :
       {std::string(), std::string("firs"), std::string("first "), std::string("First"), std::string("firstsecond"),
        std::string("first\0", 6), std::string(1, '\0'), longest + "k", longest.substr(1), std::string(100'000, 'k')})
    EXPECT_FALSE(keys.accepts(key)) << key.size();
}

TEST(ApiKeys, EveryBitCounts) {
  ApiKeys keys;
  const std::string key = "sk-0123456789abcdef";
  ASSERT_TRUE(keys.add(key, "test").ok());
  for (size_t i = 0; i < key.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = key;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_FALSE(keys.accepts(other)) << i << ' ' << bit;
    }
}

TEST(ApiKeys, RefusesWhatIsNoKeyWithoutShowingIt) {
  ApiKeys keys;
  for (const std::string& bad : {std::string(), std::string("se cret"), std::string("secret\n"), std::string(257, 's'),
                                 std::string("s\xc3\xa9"
                                             "cret")}) {
    const Status status = keys.add(bad, "--api-key");
    ASSERT_FALSE(status.ok());
    EXPECT_TRUE(status.error().message.starts_with("--api-key: "));
    EXPECT_EQ(status.error().message.find("cret"), std::string::npos);
  }
  EXPECT_TRUE(keys.empty());
}

TEST(ApiKeys, Files) {
  const std::string path = testing::TempDir() + "ddtree_keys_" + std::to_string(getpid());
  std::ofstream(path) << "# two keys\nfirst\r\n\nsecond";
  ApiKeys keys;
  ASSERT_TRUE(keys.add_file(path).ok());
  EXPECT_TRUE(keys.accepts("first"));
  EXPECT_TRUE(keys.accepts("second"));
  EXPECT_FALSE(keys.accepts("# two keys"));
  std::ofstream(path) << "# none\n";
  EXPECT_FALSE(ApiKeys().add_file(path).ok());
  std::ofstream(path) << "good\nnot good\n";
  const Status status = ApiKeys().add_file(path);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(":2: "), std::string::npos) << status.error().message;
  unlink(path.c_str());
  EXPECT_FALSE(ApiKeys().add_file(path).ok());
}

TEST(ApiKeys, BearerKey) {
  EXPECT_EQ(bearer_key("Bearer secret"), "secret");
  EXPECT_EQ(bearer_key("bearer   secret"), "secret");
  for (const char* other : {"", "Bearer", "Bearer ", "Basic secret", "secret", "Bearersecret"})
    EXPECT_EQ(bearer_key(other), "") << other;
}

TEST(HttpAuth, EveryRouteNeedsAKeyUnlessItSaysOtherwise) {
  ToyServer toy(with_key("secret"));
  std::vector<Route> all = toy.routes();
  for (Route& route : ToyServer::public_routes()) all.push_back(route);
  all.push_back({"GET", "/unknown", false, false, nullptr});
  for (const Route& route : all) {
    const std::string path =
        route.path.ends_with("/*") ? route.path.substr(0, route.path.size() - 1) + "x" : route.path;
    for (const char* method : {"GET", "POST", "HEAD", "DELETE", "PUT", "TRACE"}) {
      RawClient client(toy.port());
      client.send(std::string(method) + " " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
      const Answer answer = client.answer(true);
      const bool open = route.is_public && (route.method == method || std::string_view(method) == "HEAD");
      EXPECT_EQ(answer.status, open ? 200 : 401) << method << ' ' << route.path;
      EXPECT_EQ(answer.header("www-authenticate"), open ? "" : "Bearer");
    }
  }
  EXPECT_EQ(toy.handled, 0);
}

TEST(HttpAuth, TheKeyOpens) {
  ToyServer toy(with_key("secret"));
  EXPECT_EQ(status_of(toy.port(), get("/hello", "Authorization: Bearer secret\r\n")), 200);
  EXPECT_EQ(status_of(toy.port(), get("/hello", "X-Api-Key: secret\r\n")), 200);
  EXPECT_EQ(status_of(toy.port(), get("/hello", "Authorization: Bearer wrong\r\nX-Api-Key: secret\r\n")), 200);
  for (const char* wrong : {"Authorization: Bearer wrong\r\n", "Authorization: secret\r\n", "Authorization: Bearer\r\n",
                            "X-Api-Key: Bearer secret\r\n", "X-Api-Key:\r\n", "Cookie: key=secret\r\n"})
    EXPECT_EQ(status_of(toy.port(), get("/hello", wrong)), 401) << wrong;
  EXPECT_EQ(status_of(toy.port(), get("/hello?api_key=secret")), 401);
}

TEST(HttpAuth, RefusedBodiesAreNotRead) {
  ToyServer toy(with_key("secret"));
  RawClient client(toy.port());
  client.send(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n");
  const Answer answer = client.answer();
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.header("connection"), "close");
}

TEST(HttpAuth, NewKeysReplaceOldOnes) {
  ToyServer toy(with_key("old"));
  ApiKeys keys;
  ASSERT_TRUE(keys.add("new", "test").ok());
  toy.server().set_keys(keys);
  EXPECT_EQ(status_of(toy.port(), get("/hello", "X-Api-Key: new\r\n")), 200);
  EXPECT_EQ(status_of(toy.port(), get("/hello", "X-Api-Key: old\r\n")), 401);
}

TEST(HttpAuth, WithoutKeysOnlyThisMachineIsServed) {
  for (const char* host : {"0.0.0.0", "::"}) {
    HttpOptions options;
    options.host = host;
    options.port = 0;
    const auto refused = HttpServer::listen(options, {});
    ASSERT_FALSE(refused.ok()) << host;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
  HttpOptions keyed = with_key("secret");
  keyed.host = "0.0.0.0";
  keyed.port = 0;
  EXPECT_TRUE(HttpServer::listen(keyed, {}).ok());
  HttpOptions open;
  open.host = "0.0.0.0";
  open.port = 0;
  open.allow_unauthenticated = true;
  EXPECT_TRUE(HttpServer::listen(open, {}).ok());
  HttpOptions nowhere;
  nowhere.host = "192.0.2.1";  // of nobody's machine
  nowhere.keys = keyed.keys;
  EXPECT_FALSE(HttpServer::listen(nowhere, {}).ok());
}

// A page at http://evil.example:8000 whose name resolves to 127.0.0.1 sends that name.
TEST(HttpAuth, OnLoopbackTheHostMustBeThisMachine) {
  HttpOptions options;
  options.host_names = {"models.example"};
  ToyServer toy(options);
  for (const char* host :
       {"localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]:8000", "[::1]", "models.example", "Models.Example:443"})
    EXPECT_EQ(status_of(toy.port(), to_host(host)), 200) << host;
  for (const char* host :
       {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "127.0.0.2", "[::2]"})
    EXPECT_EQ(status_of(toy.port(), to_host(host)), 403) << host;
  HttpOptions everywhere = with_key("secret");
  everywhere.host = "0.0.0.0";
  ToyServer open(everywhere);
  EXPECT_EQ(status_of(open.port(), "GET /health HTTP/1.1\r\nHost: any.example\r\n\r\n"), 200);
}

TEST(HttpAuth, OtherOriginsAreToldNothingUnlessListed) {
  const std::string preflight =
      "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization,content-type,x-stainless-os\r\nOrigin: ";
  const auto answer = [](uint16_t port, const std::string& request) {
    RawClient client(port);
    client.send(request);
    return client.answer();
  };
  ToyServer closed(with_key("secret"));
  const Answer nothing = answer(closed.port(), preflight + "https://a.example\r\n\r\n");
  EXPECT_EQ(nothing.status, 204);
  for (const auto& [name, value] : nothing.headers) EXPECT_FALSE(name.starts_with("access-control")) << name;

  HttpOptions options = with_key("secret");
  options.cors_origins = {"https://a.example", "https://b.example"};
  ToyServer toy(options);
  const Answer listed = answer(toy.port(), preflight + "https://b.example\r\n\r\n");
  EXPECT_EQ(listed.status, 204);
  EXPECT_EQ(listed.header("access-control-allow-origin"), "https://b.example");
  EXPECT_EQ(listed.header("access-control-allow-headers"), "authorization,content-type,x-stainless-os");
  EXPECT_EQ(listed.header("access-control-allow-credentials"), "");
  EXPECT_EQ(listed.header("vary"), "Origin");
  for (const char* other : {"https://c.example", "https://a.example.c.example", "http://a.example", "null"})
    EXPECT_EQ(answer(toy.port(), preflight + other + "\r\n\r\n").header("access-control-allow-origin"), "") << other;
  const Answer refused = answer(toy.port(), get("/hello", "Origin: https://a.example\r\n"));
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.header("access-control-allow-origin"), "https://a.example");
}

}  // namespace
}  // namespace ddtree
