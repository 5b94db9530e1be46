// For tests of what ends a process: a child that does it, and what it said.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace test {

// Runs `body` in a child; returns its wait status and what it wrote to stderr.
inline int in_child(const std::function<void()>& body, std::string* said = nullptr) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) throw std::runtime_error("pipe");
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    close(pipe_ends[0]);
    body();
    _exit(0);
  }
  close(pipe_ends[1]);
  char text[4096];
  for (ssize_t got; (got = read(pipe_ends[0], text, sizeof(text))) > 0;) {
    if (said != nullptr) said->append(text, static_cast<size_t>(got));
  }
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

inline bool died_of_segv(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV; }

inline void default_handler() { signal(SIGSEGV, SIG_DFL); }  // sanitizers install their own

}  // namespace test
