// A thread for calls that may block: order, who does what when, and its end.
#include "memory/helper.h"

#include <atomic>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "held_helper.h"

using test::HeldHelper;
using um::Helper;

TEST(without_a_thread_jobs_are_done_at_once) {
  Helper helper;
  int done = 0;
  CHECK(!helper.beside());
  CHECK_EQ(helper.ask([&] { ++done; }), Helper::Ticket{0});
  CHECK_EQ(done, 1);
  bool thrown = false;
  try {
    helper.ask([] { throw std::runtime_error("a failing job"); });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
  helper.finish(0);
  helper.finish();
}

TEST(a_thread_does_jobs_in_order_after_it_has_entered) {
  std::vector<int> done;
  const std::thread::id own = std::this_thread::get_id();
  std::atomic<bool> elsewhere{false};
  Helper helper([&] {
    elsewhere = std::this_thread::get_id() != own;
    done.push_back(0);
  });
  CHECK(helper.beside());
  for (int i = 1; i <= 5; ++i) helper.ask([&, i] { done.push_back(i); });
  helper.finish();
  CHECK(elsewhere);
  CHECK(done == (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

TEST(a_job_that_has_not_begun_is_done_by_whoever_wants_it) {
  HeldHelper held;
  std::thread::id doer;
  const auto note = [&] { doer = std::this_thread::get_id(); };
  const Helper::Ticket wanted = held.helper.ask(note);
  held.helper.finish(wanted);
  CHECK(doer == std::this_thread::get_id());
  doer = {};
  held.let_go();
  held.helper.finish();
  CHECK(doer == std::thread::id());  // once
  held.helper.finish(wanted);
}

TEST(whoever_wants_a_job_that_runs_waits_for_its_end) {
  std::atomic<bool> begun{false}, ended{false};
  Helper helper([] {});
  const Helper::Ticket job = helper.ask([&] {
    begun = true;
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    ended = true;
  });
  while (!begun) std::this_thread::yield();
  helper.finish(job);
  CHECK(ended);
}

TEST(the_end_comes_after_all_jobs_and_then_they_are_done_at_once) {
  HeldHelper held;
  std::atomic<int> done{0};
  for (int i = 0; i < 3; ++i) held.helper.ask([&] { ++done; });
  std::thread releases([&] { held.let_go(); });
  held.helper.end();
  releases.join();
  CHECK_EQ(done.load(), 3);
  held.helper.ask([&] { ++done; });
  CHECK_EQ(done.load(), 4);
  held.helper.end();
}

TEST(many_threads_ask_one_helper) {
  Helper helper([] {});
  int sum =
      0;  // of jobs, of which each is done once; those of the helper and those that finish() does exclude each other
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        const Helper::Ticket ticket = helper.ask([&] {
          const std::lock_guard<std::mutex> lock(mutex);
          ++sum;
        });
        if (k % 3 == 0) helper.finish(ticket);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  helper.finish();
  CHECK_EQ(sum, 800);
}
