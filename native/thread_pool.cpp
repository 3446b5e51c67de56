#include "thread_pool.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace rooftree {

namespace {
constexpr int kTurnsBeforeYield = 4000;
constexpr auto kSpinBeforeSleep = std::chrono::microseconds(200);
}  // namespace

void Spinner::wait() {
    if (++turns_ < kTurnsBeforeYield) {
#if defined(__x86_64__)
        _mm_pause();
#endif
    } else {
        std::this_thread::yield();
    }
}

ThreadPool::ThreadPool(int threads) {
    if (threads < 1) throw std::invalid_argument("a pool needs a thread");
    try {
        for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { worker(i); });
    } catch (const std::system_error&) {
        end_workers();
        throw std::invalid_argument("the system refuses to start " + std::to_string(threads) + " threads");
    }
}

ThreadPool::~ThreadPool() { end_workers(); }

void ThreadPool::end_workers() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_.store(true);
        epoch_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::worker(int index) {
    uint64_t seen = 0;
    while (true) {
        const auto until = std::chrono::steady_clock::now() + kSpinBeforeSleep;
        Spinner spinner;
        while (epoch_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < until) spinner.wait();
        if (epoch_.load(std::memory_order_acquire) == seen) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
            sleeping_--;
        }
        seen = epoch_.load(std::memory_order_acquire);
        if (stop_.load()) return;
        (*work_)(index);
        running_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

void ThreadPool::run(const std::function<void(int)>& work) {
    if (workers_.empty()) return work(0);
    work_ = &work;
    running_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    bool anyone_sleeps;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        epoch_.fetch_add(1, std::memory_order_release);
        anyone_sleeps = sleeping_ > 0;
    }
    if (anyone_sleeps) wake_.notify_all();
    work(0);
    Spinner spinner;
    while (running_.load(std::memory_order_acquire) != 0) spinner.wait();
}

void ThreadPool::parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t)>& work) {
    std::atomic<int64_t> next{0};
    run([&](int) {
        for (int64_t begin; (begin = next.fetch_add(grain)) < count;) {
            const int64_t end = begin + grain < count ? begin + grain : count;
            for (int64_t i = begin; i < end; i++) work(i);
        }
    });
}

}  // namespace rooftree
