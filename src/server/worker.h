// A thread for work that is too long for the server's: tokenising long prompts.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace ddtree {

class Worker {
 public:
  explicit Worker(size_t capacity);
  ~Worker();  // drops what has not begun

  // Thread-safe. False where `capacity` tasks wait already.
  bool post(std::function<void()> task);

 private:
  void loop();

  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stop_ = false;                        // guarded by mutex_
  std::thread thread_;                       // last: it uses all of the above
};

}  // namespace ddtree
