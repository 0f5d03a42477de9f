/**
 * The keeper's program:
 *
 * keeper --socket PATH --program PATH [--log FILE] [--pod UID] [-- FLAGS FOR THE DATA PATH'S NODE]
 *
 * Takes over from a keeper that already listens at PATH. Exit status 1: the takeover failed. 2: the other keeper is
 * alive, does not respond and cannot be killed from here. For keepers in a pod, see `pod.ts`.
 */

import { randomBytes } from 'node:crypto';
import { lstatSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import process from 'node:process';
import { parseArgs } from 'node:util';
import { systemClock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { connectTo } from '#base/linux/descriptor-sockets.ts';
import { endProcess } from '#base/linux/end-process.ts';
import { createMemory } from '#base/linux/shared-memory.ts';
import { createConnection } from './connection.ts';
import { hardenProcess } from './harden-process.ts';
import { createKeeper } from './keeper.ts';
import { ensurePrivateFolder, listenForPeers } from './listening-socket.ts';
import { createKeeperLog } from './log-file.ts';
import { outOfReachStatus } from './node-flags.ts';
import { createPeerTerminator } from './peer-terminator.ts';
import { createPodKeeper, waitForFolder } from './pod.ts';
import { processByPidfd, startChild } from './processes.ts';
import { isServed } from './serving-lock.ts';
import { isTrusted, peerCredentials } from './system-calls.ts';
import type { Predecessor } from './take-over.ts';

const version = '1';
/** Data paths grow it as needed. */
const journalBytes = 4096;

const { values, positionals: flags } = parseArgs({
  options: {
    socket: { type: 'string' },
    program: { type: 'string' },
    log: { type: 'string' },
    pod: { type: 'string' },
  },
  allowPositionals: true,
});
if (values.socket === undefined || values.program === undefined) throw new Error('--socket and --program are required');
const path = values.socket;
const clock = systemClock();
const stopped = new AbortController();
if (values.pod !== undefined) await waitForFolder(dirname(path), clock, stopped.signal);
const { log: baseLog, fd: logFile } = createKeeperLog(values.log, clock);
const log = baseLog.with({ keeper: process.pid });
// A keeper's stderr is /dev/null: without this, the reason of a failure would be lost.
process.once('uncaughtExceptionMonitor', (cause) => log.error('the keeper failed', { cause: cause.stack }));
const pod =
  values.pod === undefined ? undefined : createPodKeeper({ pod: values.pod, folder: dirname(path), path, clock, log });
const hardening = hardenProcess('stowage keeper', -1000);
log.info('the keeper starts', { ...hardening });

ensurePrivateFolder(dirname(path));
await pod?.waitForTurn(stopped.signal);
// Not the pid: another container may have the same one.
const temporaryPath = `${path}.${randomBytes(3).toString('hex')}`;

const retryMs = 1_000;
const busyMs = { longest: 5_000, poll: 50 } as const;
const replacedSocketMs = { longest: 5_000, poll: 10 } as const;

/** EAGAIN: a keeper with many pending connections will accept ours soon. */
async function connectWithRetry(): Promise<number> {
  const startedAt = clock.elapsed();
  for (let tries = 0; ; tries++)
    try {
      return connectTo(path);
    } catch (cause) {
      const isBusy = isErrno(cause, 'EAGAIN');
      if (!isBusy || clock.elapsed() - startedAt > busyMs.longest) throw cause;
      if (tries === 0) log.info('the running keeper is busy');
      await clock.sleep(busyMs.poll, stopped.signal);
    }
}

/** Undefined: nothing listens there. */
async function findPredecessor(): Promise<Predecessor | undefined> {
  try {
    const fd = await connectWithRetry();
    const peer = peerCredentials(fd);
    if (!isTrusted(peer)) throw new Error('the process that listens there belongs to neither root nor this user');
    const end = createPeerTerminator(fd, path, clock);
    return { connection: createConnection(fd, clock), end, temporaryPath, self: { pid: process.pid, version } };
  } catch (cause) {
    if (isErrno(cause, 'ENOENT', 'ECONNREFUSED')) return undefined;
    log.warn('cannot take over from the running keeper', { cause: String(cause) });
    throw cause;
  }
}

let isPublished = false;
/** The next keeper replaces the socket in one step, unless it is killed first. */
async function waitUntilReplaced(): Promise<void> {
  const startedAt = clock.elapsed();
  while (
    lstatSync(path, { throwIfNoEntry: false })?.ino === ownInode &&
    clock.elapsed() - startedAt < replacedSocketMs.longest
  )
    await clock.sleep(replacedSocketMs.poll, stopped.signal);
}

const predecessor = await findPredecessor();
const listening = listenForPeers({
  path: temporaryPath,
  clock,
  log,
  connected: (connection) => keeper.accept(connection),
});
const ownInode = lstatSync(temporaryPath).ino;
const keeper = createKeeper({
  clock,
  log,
  path,
  program: values.program,
  predecessor,
  signal: stopped.signal,
  start: (program) => startChild(program, { clock, flags, log: logFile }),
  createJournal: () => createMemory('stowage-journal', journalBytes),
  processOf: (pidfd) =>
    processByPidfd(pidfd, clock, () =>
      log.error(
        'a data path in another container does not stop and cannot be killed from here: restart that container',
      ),
    ),
  isServed: () => isServed(path),
  replacesForeignDataPath: pod !== undefined,
  // rename(2) also replaces the socket that a killed keeper left behind.
  publishSocket: () => {
    if (!isPublished) renameSync(temporaryPath, path);
    isPublished = true;
    pod?.recordCharge();
  },
  stopListening: () => listening[Symbol.dispose](),
});

pod?.endWhenIdle(() => keeper.state.mounts);
const end = await keeper.outcome;
log.info('the keeper exits', { end });
// Keep listening meanwhile, so that a client waits. If it found nothing, it would take the next keeper's mounts for
// dead.
if (end === 'handed over') await waitUntilReplaced();
listening[Symbol.dispose]();
if (!isPublished) rmSync(temporaryPath, { force: true });
// Restart at once after a handover; retry later if the other keeper did not hand over.
if (end !== 'ended') await pod?.restart(end === 'handed over' ? 0 : retryMs);
// Nothing is left to send; sent messages are with their receivers.
const statuses = { ended: 0, 'handed over': 0, refused: 1, 'out of reach': outOfReachStatus } as const;
endProcess(statuses[end]);
