/* The program of a pod's sandbox: holds the namespaces, reaps orphans, and ends when told to. Linked statically. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  /* Without a handler the first process of a namespace ignores these. */
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = end}, NULL);
  sigaction(SIGINT, &(struct sigaction){.sa_handler = end}, NULL);
  sigaction(SIGCHLD, &(struct sigaction){.sa_handler = reap, .sa_flags = SA_NOCLDSTOP}, NULL);
  for (;;) {
    pause();
  }
}
