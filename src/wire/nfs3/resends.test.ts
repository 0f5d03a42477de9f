import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { exportedByGanesha } from '#testing/exported-folder.ts';
import { user } from '#testing/nfs-export.ts';
import { type OwnServer, startOwnServer } from '#testing/own-nfs-server.ts';
import { type ReplayingProxy, type ReplayingProxyOptions, startReplayingProxy } from '#testing/replaying-proxy.ts';
import {
  delayFirstCopy,
  failOver,
  loseReply,
  loseReplyOnSecondConnection,
  loseReplyWithoutVerifier,
  refuseExisting,
  restartAfter,
  restartBefore,
  restartProbeHasNoEffect,
  takePort,
} from '#testing/resend-cases.ts';
import {
  creatingMutations,
  type Mutation,
  mutations,
  type ResendNodes,
  removingMutations,
} from '#testing/resend-mutations.ts';
import { createRpcClient, type RpcClientOptions } from '../rpc/client.ts';
import { createNfsClient, type NfsClient } from './client.ts';

function connectClient(options: Pick<RpcClientOptions, 'addresses'> & Partial<RpcClientOptions>): NfsClient {
  const rpc = createRpcClient({ clock: systemClock(), identity: user(0), ...options });
  onTestFinished(() => rpc.close());
  return createNfsClient(rpc, systemClock());
}

async function startProxyTo(
  to: { readonly host: string; readonly port: number },
  options?: ReplayingProxyOptions,
): Promise<ReplayingProxy> {
  const proxy = await startReplayingProxy(to, options);
  onTestFinished(() => proxy[Symbol.dispose]());
  return proxy;
}

/** The tests for all servers that keep their replies. */
function testRecognisedResends(nodesOf: () => Promise<ResendNodes>): void {
  test.each(mutations)('$name: the reply is lost, and node B makes a change before the resend', async (mutation) => {
    await loseReply(await nodesOf(), mutation);
  });

  test.each(mutations)('$name: the first copy runs after the second was answered', async (mutation) => {
    await delayFirstCopy(await nodesOf(), mutation);
  });

  test('the query whether the server restarted changes nothing, and is not a COMMIT', async () => {
    const [removal] = removingMutations as readonly [Mutation];
    await restartProbeHasNoEffect(await nodesOf(), removal);
  });

  test.each(creatingMutations)(
    '$name: refuses a name that existed, though node B removes it before the call is resent',
    async (mutation) => {
      await refuseExisting(await nodesOf(), mutation);
    },
  );
}

describe('a server that recognises resent calls as Linux does, by their xid, address and port', () => {
  let own: OwnServer;
  async function nodesOf(more: Partial<RpcClientOptions> = {}): Promise<ResendNodes> {
    own = await startOwnServer({ replaysByPort: true });
    const { nfs: b, root } = await own.mount();
    const { handle: directory } = await b.mkdir(root, 'work', { mode: 0o755 });
    const proxy = await startProxyTo(own.server);
    const a = connectClient({ addresses: [proxy], ...more });
    return { proxy, a, b, directory, folder: join(own.directory, 'work'), witnesses: root };
  }
  testRecognisedResends(nodesOf);

  test.each(mutations)(
    '$name: the reply is lost, and a restart of the server is not excluded: it did not restart',
    async (mutation) => {
      const nodes = await nodesOf({ stallMs: 500 });
      await loseReplyWithoutVerifier(nodes, mutation);
      const removesName = removingMutations.includes(mutation);
      expect(nodes.proxy.deliveries(mutation.procedure)).toBeGreaterThanOrEqual(removesName ? 1 : 2);
    },
  );

  test.each(removingMutations)(
    '$name: the reply is lost, and a restart of the server is not excluded: it restarted, and node B makes a change',
    async (mutation) => {
      const nodes = await nodesOf({ stallMs: 500 });
      await loseReplyWithoutVerifier(nodes, mutation, () => own.restart());
      expect(nodes.proxy.deliveries(mutation.procedure)).toBe(1);
    },
  );

  test.each(removingMutations)(
    '$name: the reply is lost on a connection without writes: another connection knows the verifier',
    async (mutation) => {
      await loseReplyOnSecondConnection(await nodesOf({ connections: 2 }), mutation);
    },
  );

  test.each(removingMutations)(
    '$name: the server restarts and forgets the call, and node B makes a change before the resend',
    async (mutation) => {
      await restartAfter(await nodesOf(), mutation, () => own.restart());
    },
  );

  test.each(removingMutations)(
    '$name: the server restarts before it executes the call: it executes the call afterwards',
    async (mutation) => {
      await restartBefore(await nodesOf(), mutation, () => own.restart());
    },
  );

  test('REMOVE: another program takes the source port: a lookup of the name decides', async () => {
    const [removal] = removingMutations as readonly [Mutation];
    await takePort(await nodesOf({ stallMs: 500 }), removal);
  });
});

describe.skipIf(lacks('root', 'mount', 'ganesha'))('nfs-ganesha', () => {
  const it = exportedByGanesha();
  testRecognisedResends(async () => {
    const proxy = await startProxyTo({ host: it.server.host, port: it.server.nfsPort });
    const a = connectClient({ addresses: [proxy] });
    return { proxy, a, b: it.nfs, directory: it.directory, folder: it.folder, witnesses: it.open.root };
  });
});

describe('a server with two addresses', () => {
  test.each(removingMutations)('$name: node B makes a change before node A has failed over', async (mutation) => {
    const own = await startOwnServer({ replaysByPort: true });
    const { nfs: b, root } = await own.mount();
    const proxy = await startProxyTo(own.server);
    const second = await startProxyTo(own.server, { host: '127.0.0.3', source: '127.0.0.4' });
    const a = connectClient({ addresses: [proxy, second], stallMs: 500 });
    const { handle: directory } = await b.mkdir(root, 'work', { mode: 0o755 });
    const nodes = { proxy, a, b, directory, folder: join(own.directory, 'work'), witnesses: root };
    await failOver(nodes, mutation, second);
  });
});
