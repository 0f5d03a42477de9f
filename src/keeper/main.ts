/**
 * The keeper's program:
 *
 *   keeper --socket PATH --program PATH [--log FILE] [--pod UID] [-- FLAGS FOR THE DATA PATH'S NODE]
 *
 * Where a keeper listens at PATH already, this one takes everything over from it. Ends with 1 if that cannot be,
 * with 2 if that one lives, says nothing, and cannot be ended from here. In a pod, see `pod.ts`.
 */

import { randomBytes } from 'node:crypto';
import { lstatSync, renameSync, rmSync } from 'node:fs';
import { dirname } from 'node:path';
import process from 'node:process';
import { parseArgs } from 'node:util';
import { systemClock } from '#base/clock.ts';
import { connectTo } from '#base/linux/descriptors.ts';
import { endProcess } from '#base/linux/end-process.ts';
import { createMemory } from '#base/linux/memory.ts';
import { createConnection } from './connection.ts';
import { hardenProcess } from './harden-process.ts';
import { createKeeper } from './keeper.ts';
import { listenForPeers, ownFolder } from './listening-socket.ts';
import { createKeeperLog } from './log-file.ts';
import { outOfReachStatus } from './node-flags.ts';
import { createPeerTerminator } from './peer-terminator.ts';
import { createPodKeeper, waitForFolder } from './pod.ts';
import { processByPidfd, startChild } from './processes.ts';
import { isServed } from './serving-lock.ts';
import { isTrusted, peerCredentials } from './system-calls.ts';
import type { Predecessor } from './take-over.ts';

const version = '1';
/** Data paths make it as large as they need. */
const journalBytes = 4096;

const { values, positionals: flags } = parseArgs({
  options: {
    ...{ socket: { type: 'string' }, program: { type: 'string' } },
    ...{ log: { type: 'string' }, pod: { type: 'string' } },
  },
  allowPositionals: true,
});
if (values.socket === undefined || values.program === undefined) throw new Error('--socket and --program are needed');
const path = values.socket;
const clock = systemClock();
const stopped = new AbortController();
if (values.pod !== undefined) await waitForFolder(dirname(path), clock, stopped.signal);
const { log: logAll, fd: logFile } = createKeeperLog(values.log, clock);
const log = logAll.with({ keeper: process.pid });
// A keeper's standard error is /dev/null: without this nobody learns why it failed.
process.once('uncaughtExceptionMonitor', (cause) => log.error('a keeper fails', { cause: cause.stack }));
const pod =
  values.pod === undefined ? undefined : createPodKeeper({ pod: values.pod, folder: dirname(path), path, clock, log });
const hardening = hardenProcess('stowage keeper', -1000);
log.info('a keeper starts', { ...hardening });

ownFolder(dirname(path));
await pod?.waitForTurn(stopped.signal);
// By no number of a process: in another container it may be somebody else's.
const temporaryPath = `${path}.${randomBytes(3).toString('hex')}`;

const retryMs = 1_000;
const busyMs = { longest: 5_000, look: 50 } as const;
const nameMs = { longest: 5_000, look: 10 } as const;

/** One that has many at its door just now lets us in soon. */
async function connectWithRetry(): Promise<number> {
  const began = clock.elapsed();
  for (let tries = 0; ; tries++)
    try {
      return connectTo(path);
    } catch (cause) {
      const isBusy = cause instanceof Error && 'code' in cause && cause.code === 'EAGAIN';
      if (!isBusy || clock.elapsed() - began > busyMs.longest) throw cause;
      if (tries === 0) log.info('the keeper that is there is busy');
      await clock.sleep(busyMs.look, stopped.signal);
    }
}

/** Undefined: nobody listens there. */
async function findPredecessor(): Promise<Predecessor | undefined> {
  try {
    const fd = await connectWithRetry();
    const peer = peerCredentials(fd);
    if (!isTrusted(peer)) throw new Error('who listens there is neither root nor this user');
    const end = createPeerTerminator(fd, path, clock);
    return { connection: createConnection(fd, clock), end, temporaryPath, self: { pid: process.pid, version } };
  } catch (cause) {
    if (cause instanceof Error && 'code' in cause && (cause.code === 'ENOENT' || cause.code === 'ECONNREFUSED'))
      return undefined;
    log.warn('the keeper that is there cannot be followed', { cause: String(cause) });
    throw cause;
  }
}

let isPublished = false;
/** The next one takes it in one step, unless it is killed before. */
async function waitUntilReplaced(): Promise<void> {
  const began = clock.elapsed();
  while (lstatSync(path, { throwIfNoEntry: false })?.ino === ownInode && clock.elapsed() - began < nameMs.longest)
    await clock.sleep(nameMs.look, stopped.signal);
}

const predecessor = await findPredecessor();
const listening = listenForPeers({
  path: temporaryPath,
  clock,
  log,
  connected: (connection) => keeper.connected(connection),
});
const ownInode = lstatSync(temporaryPath).ino;
const keeper = createKeeper({
  ...{ clock, log, path, program: values.program, predecessor, signal: stopped.signal },
  start: (program) => startChild(program, { clock, flags, log: logFile }),
  createJournal: () => createMemory('stowage-journal', journalBytes),
  processOf: (pidfd) =>
    processByPidfd(pidfd, clock, () =>
      log.error('a data path of another container does not end, and cannot be ended from here: restart that container'),
    ),
  isServed: () => isServed(path),
  replacesForeignDataPath: pod !== undefined,
  // In one step, and over what a keeper left behind that was killed.
  publishSocket: () => {
    if (!isPublished) renameSync(temporaryPath, path);
    isPublished = true;
    pod?.tookCharge();
  },
  stopListening: () => listening[Symbol.dispose](),
});

pod?.endWhenIdle(() => keeper.state.mounts);
const end = await keeper.outcome;
log.info('a keeper ends', { end });
// Who looks for a keeper meanwhile is told to wait. If it found nobody, it would take for dead what the next one has.
if (end === 'handed over') await waitUntilReplaced();
listening[Symbol.dispose]();
if (!isPublished) rmSync(temporaryPath, { force: true });
// Whoever was told to take over is asked at once; whoever does not hand over is asked again later.
if (end !== 'ended') await pod?.restart(end === 'handed over' ? 0 : retryMs);
// Nobody else is to be told anything; what was sent lies with those it is for.
const statuses = { ended: 0, 'handed over': 0, refused: 1, 'out of reach': outOfReachStatus } as const;
endProcess(statuses[end]);
