import { deepEqual, equal, fail, ok, rejects } from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { commit, create, remove, rename, rmdir, write } from '#wire/nfs3/procedures.ts';
import { stability } from '#wire/nfs3/structures.ts';
import type { ReplayingProxy } from './replaying-proxy.ts';
import { hardMount, type Mutation, namesIn, type ResendNodes } from './resend-mutations.ts';

/**
 * The sequences of docs/designs/nfs-resends.md. The tests run them on Stowage's own server and nfs-ganesha, and e2e/qemu/linux-nfsd.ts
 * on a Linux nfsd. They throw if the result on the server's disk is wrong.
 */

/**
 * The reply is lost, and node B changes the result before node A resends the call. Node A knows that the server has not
 * restarted.
 */
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
  // The server receives more copies if it takes longer than the client waits before it resends.
  ok(proxy.deliveries(procedure) >= minDeliveries(procedure) + deliveriesForVerifier(procedure));
  equal(new Set(proxy.ports).size, 1);
}

/**
 * When node A finds out whether the server has restarted, it neither changes the file nor consumes a write error: the
 * server reports such an error to a single COMMIT only.
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

/**
 * The reply is lost, as in `loseReply`. Node A has written nothing before, so it has no write verifier and cannot know
 * whether the server restarted. `meanwhile` runs while node A cannot connect.
 */
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

/** Node A has two connections. It has written on one of them, and the reply is lost on the other. */
export async function loseReplyOnSecondConnection(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  await learnVerifier(nodes);
  // The connections take turns: CREATE goes over the first, WRITE over the second, and the call over the first.
  const lost = proxy.loseReply(procedure);
  const done = byA();
  await lost;
  await byB();
  await done;
  check();
  ok(proxy.deliveries(procedure) >= minDeliveries(procedure));
}

/** The server executes the first copy after it has answered the second. */
export async function delayFirstCopy(nodes: ResendNodes, { procedure, prepare }: Mutation): Promise<void> {
  const { proxy } = nodes;
  const { byA, byB, check } = await prepare(nodes);
  const first = proxy.holdCall(procedure);
  await byA();
  await byB();
  await first.release();
  check();
  // The server receives more copies if it takes longer than the client waits before it resends.
  ok(proxy.deliveries(procedure) >= 2);
}

/**
 * The minimum number of copies that the server receives. If a busy server does not return its verifier in time, the client does not resend a
 * call that removes a name, and decides from the directory instead.
 */
const minDeliveries = (procedure: number): number =>
  [remove, rmdir, rename].some(({ number }) => number === procedure) ? 1 : 2;

/** The calls that learning and checking the verifier needs: two WRITEs, and a CREATE of the file. */
const deliveriesForVerifier = (procedure: number): number =>
  procedure === write.number ? 2 : procedure === create.number ? 1 : 0;

/** Node A gets a write verifier, which changes when the server restarts. */
async function learnVerifier({ a, witnesses }: ResendNodes): Promise<void> {
  const { handle } = await a.create(witnesses, 'witness', { mode: 'unchecked', set: { mode: 0o644 } });
  await a.write(handle, 0, Buffer.from('x'), stability.fileSync);
}

/** The server restarts after it has executed the call, and node B changes the result before node A asks. */
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

/** The server restarts before it has executed the call. The client sends the call again. */
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

/**
 * Another process takes the client's port while the connection is down. The client decides from the directory instead
 * of resending.
 */
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

/**
 * The server executes the call on its first address, which then stops answering. Node B changes the result before node
 * A has failed over to the second address.
 */
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

/**
 * Node B's file has the name, so the server refuses node A's call. Node B removes the file before node A resends the
 * call. The caller still gets the first answer.
 */
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
