import { deepEqual, equal, fail, ok, rejects } from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { commit, create, remove, rename, rmdir, write } from '#wire/nfs3/procedures.ts';
import { stability } from '#wire/nfs3/structures.ts';
import type { ReplayingProxy } from './replaying-proxy.ts';
import { hardMount, type Mutation, namesIn, type ResendNodes } from './resend-mutations.ts';

/**
 * The sequences of docs/designs/nfs-resends.md. The tests run them on our own server and nfs-ganesha, and e2e/qemu/linux-nfsd.ts
 * on a Linux nfsd. They throw if the result on the server's disk is wrong.
 */

/** The reply is lost, and node B goes on before the call is resent. Node A knows that the server has not restarted. */
export async function loseReply(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  await learnVerifier(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  await byB();
  await proxy.up();
  await done;
  check();
  // More, if the server took longer than the client waits before it repeats a copy.
  ok(proxy.deliveries(procedure) >= minDeliveries(procedure) + deliveriesForVerifier(procedure));
  equal(new Set(proxy.ports).size, 1);
}

/**
 * The probe for a server restart does not change the file. It also does not take a write error away from the application: the server
 * reports such an error to a single COMMIT only.
 */
export async function restartProbeHasNoEffect(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy, b, witnesses } = nodes;
  const { byA } = await prepare(nodes);
  await learnVerifier(nodes);
  const { handle } = await b.lookup(witnesses, 'witness');
  await b.setattr(handle, { mode: 0o4755, mtime: { seconds: 1_234_567, nanoseconds: 0 } });
  const before = await b.getattr(handle);
  const [written, committed] = [proxy.deliveries(write.number), proxy.deliveries(commit.number)];
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await done;
  ok(proxy.deliveries(write.number) > written, 'it was not asked');
  equal(proxy.deliveries(commit.number), committed);
  deepEqual(await b.getattr(handle), before);
}

/** The reply is lost, as in `loseReply`, but node A has written nothing, so it cannot know whether the server restarted. `meanwhile`: while it cannot connect. */
export async function loseReplyWithoutVerifier(
  nodes: ResendNodes,
  { procedure, prepare }: Mutation,
  meanwhile: () => Promise<void> = async () => undefined,
): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  await meanwhile();
  await byB();
  await proxy.up();
  await done;
  check();
}

/** Two connections: node A has written on one of them, and the reply is lost on the other. */
export async function loseReplyOnSecondConnection(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  await learnVerifier(nodes);
  // The connections take turns: CREATE on the first, WRITE on the second, the call on the first.
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await byB();
  await done;
  check();
  ok(proxy.deliveries(procedure) >= minDeliveries(procedure));
}

/** The first copy runs after the second was answered. */
export async function delayFirstCopy(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const first = proxy.holdCall(procedure);
  await byA();
  await byB();
  await first.release();
  check();
  // More, if the server took longer than the client waits before it repeats a copy.
  ok(proxy.deliveries(procedure) >= 2);
}

/** A call that takes a name away is decided instead of resent, if a busy server did not tell its verifier in time. */
const minDeliveries = (procedure: number): number =>
  [remove, rmdir, rename].some(({ number }) => number === procedure) ? 1 : 2;

/** WRITE is also what the verifier is learned and asked for with, and CREATE makes the file for it. */
const deliveriesForVerifier = (procedure: number): number =>
  procedure === write.number ? 2 : procedure === create.number ? 1 : 0;

/** Node A tells one run of the server from the next by the verifier that it was given for a write. */
async function learnVerifier({ a, witnesses }: ResendNodes): Promise<void> {
  const { handle } = await a.create(witnesses, 'witness', { mode: 'unchecked', set: { mode: 0o644 } });
  await a.write(handle, 0, Buffer.from('x'), stability.fileSync);
}

/** The server restarts after it has done the call, and node B goes on before node A asks. */
export async function restartAfter(
  nodes: ResendNodes,
  mutation: Mutation,
  restart: () => Promise<void>,
): Promise<void> {
  const { procedure, prepare } = mutation;
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  await learnVerifier(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  await restart();
  await byB();
  await proxy.up();
  await done;
  check();
  equal(proxy.deliveries(procedure), 1);
}

/** The server restarts before it has done the call: the client does it again. */
export async function restartBefore(
  nodes: ResendNodes,
  mutation: Mutation,
  restart: () => Promise<void>,
): Promise<void> {
  const { proxy } = nodes;
  const { byA } = await mutation.prepare(nodes);
  await learnVerifier(nodes);
  const first = proxy.holdCall(mutation.procedure);
  const done = byA();
  await first.held;
  await proxy.down();
  await restart();
  await proxy.up();
  await done;
  deepEqual(namesIn(nodes.folder), mutation.procedure === rename.number ? ['to'] : []);
}

/** Another process takes the port while the connection is lost: the client decides instead of resending. */
export async function takePort(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await proxy.down();
  const occupant = createServer().listen(proxy.ports[0], '0.0.0.0');
  try {
    await once(occupant, 'listening');
    await byB();
    await proxy.up();
    await done;
  } finally {
    occupant.close();
  }
  check();
  equal(proxy.deliveries(procedure), 1);
  equal(new Set(proxy.ports).size, 2);
}

/** The first address does the call and falls silent; node B goes on before node A has failed over to the second. */
export async function failOver(
  nodes: ResendNodes,
  { procedure, prepare }: Mutation,
  second: ReplayingProxy,
): Promise<void> {
  const { byA, byB, check } = await prepare(nodes);
  const stalled = nodes.proxy.stallReply(procedure);
  const done = byA();
  await stalled;
  await byB();
  await done;
  check();
  ok(second.ports.length > 0, 'node A did not fail over');
}

/** Node B's file has the name, and node B removes it before node A's call is resent: the call is refused, as it was at first. */
export async function refuseExisting(nodes: ResendNodes, { name, procedure }: Mutation): Promise<void> {
  const { proxy, a, b, directory } = nodes;
  const guarded = { mode: 'guarded', set: { mode: 0o600 } } as const;
  await b.create(directory, 'new', guarded);
  const { handle } = await b.create(directory, 'other', guarded);
  const calls: Readonly<Record<string, () => Promise<unknown>>> = {
    LINK: () => a.link(handle, { directory, name: 'new' }, hardMount),
    CREATE: () => a.create(directory, 'new', { mode: 'guarded', set: { mode: 0o644 } }, hardMount),
    MKDIR: () => a.mkdir(directory, 'new', { mode: 0o755 }, hardMount),
    SYMLINK: () => a.symlink(directory, 'new', 'target', {}, hardMount),
  };
  const lost = proxy.loseReply(procedure);
  const refused = rejects(calls[name] ?? fail, { statusName: 'EXIST' });
  await lost;
  await proxy.down();
  await b.remove(directory, 'new');
  await proxy.up();
  await refused;
  deepEqual(namesIn(nodes.folder), ['other']);
}
