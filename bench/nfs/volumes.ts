/**
 * Makes volumes on an NFS store, or sends the same calls without a store:
 *
 *   node volumes.ts store|bare HOST NFS-PORT MOUNT-PORT EXPORT FOLDER
 *
 * For each line "PREFIX COUNT IN-FLIGHT" on standard input, it prints one line of JSON when it is done.
 */
import { randomUUID } from 'node:crypto';
import { createInterface } from 'node:readline';
import { systemClock } from '#base/clock.ts';
import { type Scope, silentLog } from '#base/log.ts';
import type { NodeName, StoreConfig, VolumeId } from '#core/model.ts';
import { storeName, volumeName } from '#core/names.ts';
import { type Connect, createConnect, type Session } from '#stores/nfs/connect.ts';
import { createNfsStoreKind } from '#stores/nfs/kind.ts';
import { defaultPolicy as policy } from '#testing/default-policy.ts';
import { type CountStep, record, replay } from './replay.ts';

const [side = '', host = '', port = '', mountport = '', path = '', folder = ''] = process.argv.slice(2);
const clock = systemClock();
const instance = randomUUID();

type Make = (name: string) => Promise<unknown>;
const newScope = (): Scope => ({ signal: new AbortController().signal, log: silentLog() });

async function openStore(connect: Connect): Promise<Make> {
  const config: StoreConfig = {
    name: storeName('bench'),
    uri: `nfs://${host}${path}/${folder}`,
    origin: 'api',
    policy,
    options: { port, mountport },
  };
  const context = { instance, node: 'bench' as NodeName, identity: undefined };
  const store = await createNfsStoreKind(clock, connect).open(config, policy, context, newScope());
  return (name) =>
    store.create(
      {
        id: `sv1-${randomUUID()}` as VolumeId,
        name: volumeName(name),
        bytes: undefined,
        access: 'filesystem',
        labels: {},
        requestId: randomUUID(),
        createdAt: clock.now(),
        instance,
      },
      newScope(),
    );
}

/** Also returns the session, for its count of calls. */
async function open(): Promise<{ readonly make: Make; readonly session: Session }> {
  const real = createConnect(clock);
  const { promise: opened, resolve } = Promise.withResolvers<Session>();
  let steps: CountStep[] | undefined;
  const connect: Connect = async (options, onStep, signal) => {
    const session = await real(options, onStep, signal);
    resolve(session);
    return side === 'bare' ? { ...session, nfs: record(session.nfs, (step) => steps?.push(step)) } : session;
  };
  const create = await openStore(connect);
  const session = await opened;
  if (side !== 'bare') return { make: create, session };
  const sample = 'sample';
  steps = [];
  await create(sample);
  const seen = steps;
  return { make: (name) => replay(session.nfs, seen, sample, name), session };
}

async function main(): Promise<void> {
  const { make, session } = await open();
  for await (const line of createInterface({ input: process.stdin })) {
    const [prefix = '', count, inFlight] = line.split(' ');
    const calls = session.calls;
    const began = performance.now();
    let next = 0;
    const slot = async (): Promise<void> => {
      while (next < Number(count)) await make(`${prefix}-${next++}`);
    };
    await Promise.all(Array.from({ length: Number(inFlight) }, slot));
    const perSecond = (Number(count) * 1000) / (performance.now() - began);
    console.log(JSON.stringify({ perSecond, callsEach: (session.calls - calls) / Number(count) }));
  }
}

await main();
// Open connections of the store would keep the process running.
process.exit(0);
