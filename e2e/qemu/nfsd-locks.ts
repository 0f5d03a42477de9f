import { equal, ok, rejects } from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { systemClock } from '#base/clock.ts';
import { isErrno } from '#base/errno.ts';
import { silentLog } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { NodeName, VolumeId } from '#core/model.ts';
import { newVolumeId, storeName } from '#core/names.ts';
import type { HostLocks } from '#stores/file-store/store-root.ts';
import { createConnect } from '#stores/nfs/connect.ts';
import { openNfsStoreRoot } from '#stores/nfs/open-store-root.ts';
import { parseOptions } from '#stores/nfs/options.ts';
import { startReplayingProxy } from '#testing/replaying-proxy.ts';
import { remove, setattr } from '#wire/nfs3/procedures.ts';
import { seededRandom } from '../crash/seeded-random.ts';
import { type Disturbances, disturbances, mountPort, nfsd, secondAddress } from './nfsd-clients.ts';

const scope = { signal: new AbortController().signal, log: silentLog() };

/** A host with an open store on the export. */
interface Host extends AsyncDisposable {
  readonly locks: HostLocks;
}

async function openHost(hosts: readonly string[], port: number, folder: string, instance: string): Promise<Host> {
  const clock = systemClock();
  // One process simulates several hosts, each with its own process mark and connections.
  const marks = { own: randomInt(2, 2 ** 29), dead: [] };
  const parts = {
    options: parseOptions(`nfs://${hosts.join(',')}${folder}`, { port: `${port}`, mountport: `${mountPort}` }),
    store: storeName('shown'),
    clock,
    connect: createConnect(clock),
    readOnly: false,
    context: { instance, node: instance as NodeName, marks },
    marks,
    held: new Set<string>(),
  };
  const { hostLocks: locks, close } = await openNfsStoreRoot(parts, scope);
  if (locks === undefined) throw new Error('the store has no locks');
  return { locks: locks, [Symbol.asyncDispose]: close };
}

export interface LockRun {
  readonly held: number;
  readonly refused: number;
  readonly cuts: readonly Disturbances['counts'][];
}

/** Hosts take one lock in turn while their connections are cut. Each holder checks that it is the only one. */
export async function holdByTurns(folder: string, seed: number, turns: number): Promise<LockRun> {
  await using opened = new AsyncDisposableStack();
  mkdirSync(folder);
  const id = newVolumeId();
  const counter = join(folder, '..', `${id}.count`);
  writeFileSync(counter, '0');
  const cuts: Disturbances['counts'][] = [];
  let inside = 0;
  let refused = 0;
  async function takeTurns(locks: HostLocks): Promise<void> {
    for (let turn = 0; turn < turns; ) {
      try {
        await using _ = await locks.hold([id], scope.signal);
        equal(++inside, 1, 'two hosts hold one lock');
        const before = Number(readFileSync(counter, 'utf8'));
        await delay(5);
        writeFileSync(counter, `${before + 1}`);
        inside--;
        turn++;
      } catch (cause) {
        // Only temporary errors are allowed: `volume-locked-elsewhere`, or a call without an answer.
        if (!isTemporary(cause)) throw cause;
        refused++;
      }
    }
  }
  const hosts: HostLocks[] = [];
  for (const i of [0, 1, 2]) {
    const disturbed = disturbances(seededRandom(seed + i), { late: true });
    cuts.push(disturbed.counts);
    const proxy = opened.use(await startReplayingProxy(nfsd, { ...disturbed, source: `127.0.0.${10 + i}` }));
    hosts.push(opened.use(await openHost([proxy.host], proxy.port, folder, `host-${i}`)).locks);
  }
  await Promise.all(hosts.map(takeTurns));
  const held = hosts.length * turns;
  equal(readFileSync(counter, 'utf8'), `${held}`);
  return { held, refused, cuts };
}

const isTemporary = (cause: unknown): boolean =>
  cause instanceof StowageError || isErrno(cause, 'ETIMEDOUT', 'EIO', 'ECONNRESET');

/**
 * A host releases its lock and fails over before it receives the answer, while the next host already holds the lock.
 */
export async function releaseAcrossFailOver(folder: string): Promise<void> {
  await using opened = new AsyncDisposableStack();
  mkdirSync(folder);
  const id: VolumeId = newVolumeId();
  const first = opened.use(await startReplayingProxy(nfsd));
  const other = opened.use(await startReplayingProxy(nfsd, { ...secondAddress, port: first.port }));
  const one = opened.use(await openHost([first.host, other.host], first.port, folder, 'one'));
  const two = opened.use(await openHost([nfsd.host], nfsd.port, folder, 'two'));
  const three = opened.use(await openHost([nfsd.host], nfsd.port, folder, 'three'));
  const held = await one.locks.hold([id], scope.signal);
  const stalled = first.stallReply(remove.number, setattr.number);
  const released = held[Symbol.asyncDispose]();
  await stalled;
  const next = await two.locks.hold([id], scope.signal);
  await released;
  // Waiting calls trigger the host's fail-over.
  await one.locks.holderOf(id).catch(() => undefined);
  ok(other.ports.length > 0, 'the host did not fail over');
  ok((await three.locks.holderOf(id)) !== 'nobody', 'the lock of the second host is gone');
  await rejects(three.locks.hold([id], AbortSignal.timeout(3_000)), 'two hosts hold one lock');
  await next[Symbol.asyncDispose]();
  const last = await three.locks.hold([id], scope.signal);
  await last[Symbol.asyncDispose]();
}
