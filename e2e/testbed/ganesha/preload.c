/*
 * Preloaded into ganesha.nfsd, for tests.
 *
 * Debian's build gives up when it cannot register with rpcbind, which would listen beyond loopback: here registration
 * always "succeeds", and nobody is told. And it looks at every file system of the machine when it starts, also at those
 * that other tests freeze or unmount: here it sees only the mounts in the file that STOWAGE_MOUNTS names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mntent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

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
