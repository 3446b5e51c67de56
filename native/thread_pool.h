// A fixed team of threads that runs one function at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace rooftree {

// Lets the processor breathe inside a spin, and the system run someone else when the spin is long.
class Spinner {
   public:
    void wait();

   private:
    int turns_ = 0;
};

// The caller is thread 0; `threads - 1` workers wait, first spinning for a moment (the next step of a busy engine
// comes soon), then asleep, so that an idle engine costs nothing.
class ThreadPool {
   public:
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Runs work(thread index) on every thread; returns when all are done.
    void run(const std::function<void(int)>& work);

    // Runs work(i) for i in [0, count), handed out in grains.
    void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t)>& work);

   private:
    void worker(int index);
    void end_workers();

    std::vector<std::thread> workers_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<uint64_t> epoch_{0};
    std::atomic<int> running_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    int sleeping_ = 0;
};

}  // namespace rooftree
