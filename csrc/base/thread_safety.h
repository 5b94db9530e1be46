// Clang's thread safety analysis: which lock a function needs and a member is guarded by. clang-tidy checks it (`make
// tidy`); other compilers see nothing of it.
#pragma once

#ifdef __clang__
#define UM_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define UM_THREAD_SAFETY(attribute)
#endif

#define CAPABILITY(name) UM_THREAD_SAFETY(capability(name))
#define SCOPED_CAPABILITY UM_THREAD_SAFETY(scoped_lockable)
#define GUARDED_BY(lock) UM_THREAD_SAFETY(guarded_by(lock))
#define REQUIRES(...) UM_THREAD_SAFETY(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) UM_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) UM_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define RELEASE(...) UM_THREAD_SAFETY(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) UM_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(lock) UM_THREAD_SAFETY(assert_capability(lock))
#define NO_THREAD_SAFETY_ANALYSIS UM_THREAD_SAFETY(no_thread_safety_analysis)

namespace um {

// The lock of a device. The analysis takes the locks of all devices for one.
class CAPABILITY("device lock") DeviceLock {
 public:
  // Tells the analysis of a lambda that its caller holds the lock.
  void assert_held() const ASSERT_CAPABILITY(this) {}
};
inline constexpr DeviceLock device_lock;

}  // namespace um
