import { describe, expect, test, vi } from 'vitest';
import { lacks } from '#testbed/lacks.ts';
import { createKeeperFixture } from '#testing/keeper/keeper-process.ts';

// Only a seccomp profile or another kernel would refuse this to root.
vi.mock(import('./system-calls.ts'), async (original) => {
  const all = await original();
  return {
    ...all,
    killProcess: () => {
      throw new Error('pidfd_send_signal: EPERM');
    },
  };
});

describe.skipIf(lacks('linux'))('an agent', () => {
  test('reports that it is not permitted to kill a keeper', { timeout: 30_000 }, async () => {
    await using scratch = createKeeperFixture();
    await scratch.startKeeper();
    const client = scratch.client();
    expect(client.kill()).toBe(false);
    expect((await client.status(scratch.signal)).mounts).toBe(0);
  });
});
