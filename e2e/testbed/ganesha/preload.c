/*
 * Preloaded into ganesha.nfsd, for tests.
 *
 * Debian's build gives up when it cannot register with rpcbind, which would listen beyond loopback: here registration
 * always "succeeds", and nobody is told. And it looks at every file system of the machine when it starts, also at those
 * that other tests freeze or unmount: here it sees only the mounts in the file that STOWAGE_MOUNTS names.
 *
 * The file that STOWAGE_CLOCK names holds a number of seconds: by so much the server's clock differs from the machine's
 * when a client asks it to set a time to "now". Nothing else of the server's time is changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

bool rpcb_set(unsigned program, unsigned version, const void *network, const void *address) {
  (void)program, (void)version, (void)network, (void)address;
  return true;
}

bool rpcb_unset(unsigned program, unsigned version, const void *network) {
  (void)program, (void)version, (void)network;
  return true;
}

FILE *setmntent(const char *file, const char *mode) {
  FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "setmntent");
  const char *mounts = getenv("STOWAGE_MOUNTS");
  return real(mounts == NULL ? file : mounts, mode);
}

static const struct timespec *shifted(const struct timespec given[2], struct timespec into[2]) {
  const char *path = getenv("STOWAGE_CLOCK");
  FILE *file = path == NULL || given == NULL ? NULL : fopen(path, "re");
  long long seconds = 0;
  if (file == NULL) return given;
  if (fscanf(file, "%lld", &seconds) != 1) seconds = 0;
  fclose(file);
  for (int i = 0; i < 2; i++) {
    into[i] = given[i];
    if (given[i].tv_nsec != UTIME_NOW) continue;
    clock_gettime(CLOCK_REALTIME, &into[i]);
    into[i].tv_sec += seconds;
  }
  return into;
}

int futimens(int descriptor, const struct timespec times[2]) {
  int (*real)(int, const struct timespec[2]) = dlsym(RTLD_NEXT, "futimens");
  struct timespec into[2];
  return real(descriptor, shifted(times, into));
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  int (*real)(int, const char *, const struct timespec[2], int) = dlsym(RTLD_NEXT, "utimensat");
  struct timespec into[2];
  return real(folder, path, shifted(times, into), flags);
}
