import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { systemClock } from '#base/clock.ts';
import { lacks } from '#testbed/lacks.ts';
import { makeFarNetwork } from '#testing/network-namespaces.ts';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { createKeepers } from './keepers.ts';

const unending = new AbortController().signal;
const kind = { network: 'docker:far', privilegedPorts: false };

describe.skipIf(lacks('root', 'netns'))('a keeper of an engine’s network', () => {
  test('follows the network to another namespace, once', { timeout: 60_000 }, async () => {
    await using far = await makeFarNetwork();
    const scratch = createScratchFolder();
    const keepers = createKeepers({
      clock: systemClock(),
      log: scratch.scope.log,
      folder: join(scratch.folder, 'k'),
      version: 'test',
      onMountsLost: () => undefined,
      onAbandoned: () => undefined,
      findNamespace: async (network) => (network === 'docker:far' ? `netns:${far.name}` : expect.fail(network)),
    });
    onTestFinished(async () => {
      await keepers.endIdle(unending);
      await keepers[Symbol.asyncDispose]();
      scratch[Symbol.dispose]();
    });
    await keepers.use(kind, unending, async () => undefined);
    // And a data path that waits for it.
    const pidsBefore = await far.hasPids(2);
    await keepers.runMaintenance(unending);
    expect(await far.hasPids(2)).toEqual(pidsBefore);

    await far.removeEnd();
    await far.makeEnd();
    expect(await far.pids()).toEqual([]);
    await keepers.runMaintenance(unending);
    const pidsAfter = await far.hasPids(2);
    expect((await keepers.status(unending)).map(({ state }) => state?.doing)).toEqual(['idle']);
    await keepers.use(kind, unending, async () => undefined);
    await keepers.runMaintenance(unending);
    expect(await far.hasPids(2)).toEqual(pidsAfter);
  });
});
