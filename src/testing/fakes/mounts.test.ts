import { mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { mounterContract } from '../contracts/mounter.ts';
import { scope } from '../contracts/store.ts';
import { createFakeMounts } from './mounts.ts';

const newFolder = (): string => realpathSync(mkdtempSync(join(tmpdir(), 'stowage-fakes-')));

mounterContract('the fake mounter', () => {
  const folder = newFolder();
  const [forbidden, published] = [join(folder, 'state'), join(folder, 'state/published')];
  mkdirSync(published, { recursive: true });
  const mounts = createFakeMounts({ forbidden: () => [forbidden], published });
  return {
    mounter: mounts.mounter,
    folder,
    forbidden,
    published,
    occupy: (at, how) => void mounts.mount(at, { source: 'test', type: 'tmpfs', readOnly: how?.readOnly === true }),
    use: mounts.use,
    [Symbol.dispose]: () => rmSync(folder, { recursive: true }),
  };
});

test('a call on a stalled path waits until the path answers or the call is aborted', async () => {
  const at = newFolder();
  onTestFinished(() => rmSync(at, { recursive: true }));
  const mounts = createFakeMounts();
  mounts.mount(at, { source: 'test', type: 'tmpfs' });
  const ending = new AbortController();
  {
    using stalled = mounts.stall(at);
    const ended = mounts.mounter.unmount(at, { ...scope, signal: ending.signal });
    await stalled.reached;
    ending.abort(new Error('enough'));
    await expect(ended).rejects.toThrow('enough');
    expect(await mounts.mounter.isMounted('/elsewhere', scope)).toBe(false);
  }
  await mounts.mounter.unmount(at, scope);
  expect(await mounts.mounter.list(scope)).toHaveLength(1);
});
