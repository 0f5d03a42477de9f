import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { cutNetwork, enterNamespace, farSource, openPorts, type PacketFault } from '#testing/cut-network.ts';
import { runWithFaults, startKeeperMounts } from '#testing/keeper-mounts.ts';
import { makeFarNetwork } from '#testing/network-namespaces.ts';
import { run, runFioVerify, runModelWorkload } from '#testing/workloads.ts';

describe.skipIf(lacks('root', 'fuse', 'netns', 'firewall', 'fio'))('a firewall between data path and server', () => {
  test.each<readonly [PacketFault, number]>([
    ['lose', 4_000],
    ['refuse', 1_500],
  ])(
    'work continues after a firewall that begins to %s all packets is removed',
    { timeout: 120_000 },
    async (fault, ms) => {
      await using remoteNetwork = await makeFarNetwork();
      await using mounts = await startKeeperMounts({ enter: enterNamespace(remoteNetwork) });
      const { at, on } = await mounts.mount(await farSource(remoteNetwork));
      const cutForAWhile = async (): Promise<void> => {
        await using _rules = await cutNetwork(remoteNetwork, fault);
        await sleep(ms);
      };
      await runWithFaults(2, cutForAWhile, async (round) => {
        await run('mkdir', [on(`${round}`)]);
        await Promise.all([runFioVerify(at, mounts.folder), runModelWorkload(on(`${round}`), round, 300)]);
      });
      await run('umount', [at]);
    },
  );

  test('the data path reconnects after a firewall has forgotten its connections', { timeout: 120_000 }, async () => {
    await using remoteNetwork = await makeFarNetwork();
    await using mounts = await startKeeperMounts({ enter: enterNamespace(remoteNetwork) });
    const { at } = await mounts.mount(await farSource(remoteNetwork), { cacheMs: 0 });
    await run('ls', [at]);
    const ports = await openPorts(remoteNetwork);
    expect(ports.length).toBeGreaterThan(0);
    await using _rules = await cutNetwork(remoteNetwork, 'lose', ports);
    await runFioVerify(at, mounts.folder);
    await run('umount', [at]);
  });
});
