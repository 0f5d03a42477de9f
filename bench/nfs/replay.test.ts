import { expect, test } from 'vitest';
import type { NfsClient } from '#wire/nfs3/index.ts';
import { type CountStep, record, replay } from './replay.ts';

/** A client whose file handles are the bytes of names. Some names do not exist. */
function fakeClient(): { readonly nfs: NfsClient; readonly calls: unknown[][] } {
  const calls: unknown[][] = [];
  const answer =
    (method: string) =>
    async (...args: readonly unknown[]): Promise<unknown> => {
      calls.push([method, ...args]);
      if (method === 'lookup') throw new Error('NOENT');
      return { handle: Buffer.from(String(args[1])) };
    };
  const nfs = { lookup: answer('lookup'), create: answer('create'), write: answer('write'), rename: answer('rename') };
  return { nfs: nfs as unknown as NfsClient, calls };
}

test('a replay repeats the same calls for another name, with the handles that the new calls return', async () => {
  const { nfs, calls } = fakeClient();
  const root = Buffer.from('root');
  const steps: CountStep[] = [];
  const recorded = record(nfs, (step) => steps.push(step));
  await expect(recorded.lookup(root, 'sample')).rejects.toThrow('NOENT');
  const { handle } = await recorded.create(root, 'sample.meta', { mode: 'exclusive', verifier: 1n });
  await recorded.write(handle, 0, Buffer.from('data'), 2, { deadlineMs: 5 });
  await recorded.rename({ directory: root, name: 'sample.meta' }, { directory: handle, name: 'x' });
  calls.length = 0;
  await replay(nfs, steps, 'sample', 'other');
  const made = Buffer.from('other.meta');
  expect(calls).toEqual([
    ['lookup', root, 'other'],
    ['create', root, 'other.meta', { mode: 'exclusive', verifier: 1n }],
    ['write', made, 0, Buffer.from('data'), 2, { deadlineMs: 5 }],
    ['rename', { directory: root, name: 'other.meta' }, { directory: made, name: 'x' }],
  ]);
});

test('a replay reports a call that fails only in the replay', async () => {
  const { nfs } = fakeClient();
  const steps: CountStep[] = [{ method: 'lookup', args: [Buffer.from('root'), 'sample'], result: {} }];
  await expect(replay(nfs, steps, 'sample', 'other')).rejects.toThrow('NOENT');
});
