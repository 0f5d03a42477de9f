/*
 * NFS version 3 calls by libnfs, over one connection: what our client is measured against, and what drives servers that
 * are measured.
 *
 *   libnfs-bench HOST NFS-PORT MOUNT-PORT EXPORT FOLDER
 *
 * Works in FOLDER of the export, which holds a directory `many`. Each line "OPERATION IN-FLIGHT MILLISECONDS" on standard
 * input is answered, when it is done, by one line of JSON. bench/nfs/client.ts does the same with our client.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-mount.h>
#include <nfsc/libnfs-raw-nfs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MIB (1 << 20)
/* The large file is this long, in MiB; reads and writes go round in it. */
#define FILE_MIB 64
#define MOST_IN_FLIGHT 256

typedef struct {
  char bytes[NFS3_FHSIZE];
  nfs_fh3 handle;
} Handle;

/* One of the calls that are under way at the same time. */
typedef struct {
  int number;
  int step;
  char name[32];
  Handle file;
} Slot;

typedef struct {
  const char *name;
  void (*call)(Slot *slot);
  /* False: the slot has called again, and is not done yet. NULL: one call is all. */
  bool (*next)(Slot *slot, void *result);
  /* Untimed, at the end. */
  void (*undo)(Slot *slot);
} Operation;

static struct rpc_context *rpc;
static Handle folder, large, many;
static char data[MIB];
static const Operation *operation;
static void (*begin)(Slot *slot);
static double until;
static int started, finished, limit, counted;
static bool answered;

static void fail(const char *what, int status) {
  fprintf(stderr, "libnfs-bench: %s: %d %s\n", what, status, rpc == NULL ? "" : rpc_get_error(rpc));
  exit(1);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec / 1e9;
}

static double cpu_seconds(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void keep(Handle *to, const nfs_fh3 *from) {
  to->handle.data.data_len = from->data.data_len;
  to->handle.data.data_val = memcpy(to->bytes, from->data.data_val, from->data.data_len);
}

static void turn(struct rpc_context *of) {
  struct pollfd wait = {.fd = rpc_get_fd(of), .events = rpc_which_events(of)};
  poll(&wait, 1, 1000);
  if (rpc_service(of, wait.revents) < 0) fail("connection", 0);
}

/* What every answer comes through while something is measured. */
static void on_answer(struct rpc_context *of, int status, void *result, void *private) {
  Slot *slot = private;
  (void)of;
  if (status != RPC_STATUS_SUCCESS) fail(operation->name, status);
  if (*(nfsstat3 *)result != NFS3_OK) fail(operation->name, *(nfsstat3 *)result);
  if (begin == operation->call && operation->next != NULL && !operation->next(slot, result)) return;
  finished++;
  if (started >= limit || (until > 0 && seconds() >= until)) return;
  slot->number = started++;
  slot->step = 0;
  begin(slot);
}

static void queued(int status) {
  if (status != 0) fail("cannot queue a call", status);
}

static void getattr(Slot *slot) {
  GETATTR3args args = {.object = folder.handle};
  queued(rpc_nfs3_getattr_async(rpc, on_answer, &args, slot));
}

static void lookup(Slot *slot) {
  LOOKUP3args args = {.what = {folder.handle, "large"}};
  queued(rpc_nfs3_lookup_async(rpc, on_answer, &args, slot));
}

static void make_directory(Slot *slot) {
  MKDIR3args args = {.where = {folder.handle, slot->name}};
  snprintf(slot->name, sizeof slot->name, "d%d", slot->number);
  args.attributes.mode.set_it = 1;
  args.attributes.mode.set_mode3_u.mode = 0755;
  queued(rpc_nfs3_mkdir_async(rpc, on_answer, &args, slot));
}

static void remove_directory(Slot *slot) {
  RMDIR3args args = {.object = {folder.handle, slot->name}};
  snprintf(slot->name, sizeof slot->name, "d%d", slot->number);
  queued(rpc_nfs3_rmdir_async(rpc, on_answer, &args, slot));
}

static CREATE3args creation(char *name) {
  CREATE3args args = {.where = {folder.handle, name}, .how = {.mode = UNCHECKED}};
  args.how.createhow3_u.obj_attributes.mode.set_it = 1;
  args.how.createhow3_u.obj_attributes.mode.set_mode3_u.mode = 0644;
  return args;
}

static void create_file(Slot *slot) {
  snprintf(slot->name, sizeof slot->name, "f%d", slot->number);
  CREATE3args args = creation(slot->name);
  queued(rpc_nfs3_create_async(rpc, on_answer, &args, slot));
}

static void write_at(Slot *slot, const Handle *file, uint64_t offset, uint32_t length) {
  WRITE3args args = {.file = file->handle, .offset = offset, .count = length, .stable = UNSTABLE};
  args.data.data_len = length;
  args.data.data_val = data;
  queued(rpc_nfs3_write_async(rpc, on_answer, &args, slot));
}

/* Created, then written, then removed. */
static bool use_file(Slot *slot, void *result) {
  switch (slot->step++) {
    case 0: {
      post_op_fh3 *made = &((CREATE3res *)result)->CREATE3res_u.resok.obj;
      if (!made->handle_follows) fail("CREATE gave no handle", 0);
      keep(&slot->file, &made->post_op_fh3_u.handle);
      write_at(slot, &slot->file, 0, 4096);
      return false;
    }
    case 1: {
      REMOVE3args args = {.object = {folder.handle, slot->name}};
      queued(rpc_nfs3_remove_async(rpc, on_answer, &args, slot));
      return false;
    }
    default:
      return true;
  }
}

static void write_large(Slot *slot) { write_at(slot, &large, (uint64_t)(slot->number % FILE_MIB) * MIB, MIB); }

static void read_large(Slot *slot) {
  READ3args args = {.file = large.handle, .offset = (uint64_t)(slot->number % FILE_MIB) * MIB, .count = MIB};
  queued(rpc_nfs3_read_async(rpc, on_answer, &args, slot));
}

static bool all_read(Slot *slot, void *result) {
  (void)slot;
  if (((READ3res *)result)->READ3res_u.resok.count != MIB) fail("READ gave less", 0);
  return true;
}

static void list_from(Slot *slot, cookie3 cookie, const cookieverf3 verifier) {
  READDIRPLUS3args args = {.dir = many.handle, .cookie = cookie, .dircount = 16384, .maxcount = 65536};
  if (verifier != NULL) memcpy(args.cookieverf, verifier, sizeof args.cookieverf);
  queued(rpc_nfs3_readdirplus_async(rpc, on_answer, &args, slot));
}

static void list(Slot *slot) { list_from(slot, 0, NULL); }

static bool list_on(Slot *slot, void *result) {
  READDIRPLUS3resok *found = &((READDIRPLUS3res *)result)->READDIRPLUS3res_u.resok;
  cookie3 cookie = 0;
  for (entryplus3 *entry = found->reply.entries; entry != NULL; entry = entry->nextentry) {
    counted++;
    cookie = entry->cookie;
  }
  if (found->reply.eof) return true;
  list_from(slot, cookie, found->cookieverf);
  return false;
}

static const Operation operations[] = {
    {"getattr", getattr, NULL, NULL},
    {"lookup", lookup, NULL, NULL},
    {"mkdir", make_directory, NULL, remove_directory},
    {"file", create_file, use_file, NULL},
    {"read", read_large, all_read, NULL},
    {"write", write_large, NULL, NULL},
    {"readdirplus", list, list_on, NULL},
};

static void run(void (*call)(Slot *slot), int in_flight) {
  static Slot slots[MOST_IN_FLIGHT];
  begin = call;
  started = finished = 0;
  for (int i = 0; i < in_flight && started < limit; i++) {
    slots[i].number = started++;
    slots[i].step = 0;
    call(&slots[i]);
  }
  while (finished < started) turn(rpc);
}

static void measure(int in_flight, int milliseconds) {
  double began = seconds(), used = cpu_seconds();
  counted = 0;
  limit = 1 << 30;
  until = began + milliseconds / 1e3;
  run(operation->call, in_flight);
  double took = seconds() - began, cpu = cpu_seconds() - used;
  int made = finished, count = counted > 0 ? counted : finished;
  until = 0;
  limit = made;
  if (operation->undo != NULL) run(operation->undo, 64);
  printf("{\"operation\":\"%s\",\"inFlight\":%d,\"count\":%d,\"perSecond\":%.1f,\"cpuMicroseconds\":%.3f}\n",
         operation->name, in_flight, count, count / took, cpu * 1e6 / count);
  fflush(stdout);
}

static void on_connected(struct rpc_context *of, int status, void *result, void *private) {
  (void)of, (void)result, (void)private;
  if (status != RPC_STATUS_SUCCESS) fail("cannot connect", status);
  answered = true;
}

static void wait_for_answer(struct rpc_context *of) {
  for (answered = false; !answered;) turn(of);
}

static struct rpc_context *connected(const char *host, const char *port, int program, int version) {
  struct rpc_context *made = rpc_init_context();
  if (rpc_connect_port_async(made, host, atoi(port), program, version, on_connected, NULL) != 0) fail("connect", 0);
  wait_for_answer(made);
  return made;
}

static void on_mounted(struct rpc_context *of, int status, void *result, void *private) {
  (void)of, (void)private;
  mountres3 *mounted = result;
  if (status != RPC_STATUS_SUCCESS || mounted->fhs_status != MNT3_OK) fail("MNT", status);
  nfs_fh3 root = {{mounted->mountres3_u.mountinfo.fhandle.fhandle3_len,
                   mounted->mountres3_u.mountinfo.fhandle.fhandle3_val}};
  keep(&folder, &root);
  answered = true;
}

static void on_found(struct rpc_context *of, int status, void *result, void *private) {
  (void)of;
  LOOKUP3res *found = result;
  if (status != RPC_STATUS_SUCCESS || found->status != NFS3_OK) fail("LOOKUP", status);
  keep(private, &found->LOOKUP3res_u.resok.object);
  answered = true;
}

static void find(char *name, Handle *into) {
  LOOKUP3args args = {.what = {folder.handle, name}};
  queued(rpc_nfs3_lookup_async(rpc, on_found, &args, into));
  wait_for_answer(rpc);
}

static void on_created(struct rpc_context *of, int status, void *result, void *private) {
  (void)of, (void)private;
  if (status != RPC_STATUS_SUCCESS || ((CREATE3res *)result)->status != NFS3_OK) fail("CREATE", status);
  answered = true;
}

static void prepare(char **arguments) {
  struct rpc_context *mount = connected(arguments[1], arguments[3], MOUNT_PROGRAM, MOUNT_V3);
  if (rpc_mount3_mnt_async(mount, on_mounted, arguments[4], NULL) != 0) fail("MNT", 0);
  wait_for_answer(mount);
  rpc_destroy_context(mount);
  rpc = connected(arguments[1], arguments[2], NFS_PROGRAM, NFS_V3);
  find(arguments[5], &folder);
  find("many", &many);
  CREATE3args args = creation("large");
  queued(rpc_nfs3_create_async(rpc, on_created, &args, NULL));
  wait_for_answer(rpc);
  find("large", &large);
  for (int i = 0; i < MIB; i++) data[i] = (char)(i * 7);
  operation = &(Operation){.name = "write", .call = write_large};
  limit = FILE_MIB;
  run(write_large, 4);
}

int main(int count, char **arguments) {
  char name[32];
  int in_flight, milliseconds;
  if (count != 6) fail("usage: libnfs-bench HOST NFS-PORT MOUNT-PORT EXPORT FOLDER", 0);
  prepare(arguments);
  while (scanf("%31s %d %d", name, &in_flight, &milliseconds) == 3) {
    operation = NULL;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
      if (strcmp(operations[i].name, name) == 0) operation = &operations[i];
    if (operation == NULL || in_flight < 1 || in_flight > MOST_IN_FLIGHT) fail(name, in_flight);
    measure(in_flight, milliseconds);
  }
  return 0;
}
