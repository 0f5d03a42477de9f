import { beforeEach, expect, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { createClearTarget } from './clear-target.ts';
import { StowageError } from './errors.ts';
import type { Access } from './model.ts';
import type { Mounter } from './ports.ts';

let inspectedTargets: string[];
beforeEach(() => {
  inspectedTargets = [];
});

const refusal = () => new StowageError('no', { code: 'conflict', reason: 'target-kind', action: 'None.' });

/** `there`: the type of the existing target. Undefined: there is none. */
const createClear = (there: Access | undefined, more: Partial<Mounter> = {}) =>
  createClearTarget({
    mounter: {
      list: async () => [],
      inspectTarget: async (target: string, access: Access) => {
        inspectedTargets.push(`inspect ${access}`);
        if (there !== undefined && there !== access) throw refusal();
        return { target, existed: there !== undefined };
      },
      removeTarget: async (target: string) => void inspectedTargets.push(`remove ${target}`),
      ...more,
    } as unknown as Mounter,
  });

test('removes an empty directory or file', async () => {
  await createClear('filesystem')('/t', aCall());
  await createClear('block')('/t', aCall());
  expect(inspectedTargets).toEqual([
    'inspect filesystem',
    'remove /t',
    'inspect filesystem',
    'inspect block',
    'remove /t',
  ]);
});

test('leaves alone targets that do not exist or are not valid mount targets', async () => {
  await createClear(undefined)('/t', aCall());
  const rejectInspection = async (): Promise<never> => {
    throw refusal();
  };
  await createClear('filesystem', { inspectTarget: rejectInspection })('/t', aCall());
  // The target now resolves to another path.
  const elsewhere = async () => ({ target: '/other', existed: true });
  await createClear('filesystem', { inspectTarget: elsewhere })('/t', aCall());
  await createClear('filesystem', { unable: { why: 'not root', action: 'Be root.' } })('/t', aCall());
  expect(inspectedTargets.filter((one) => one.startsWith('remove'))).toEqual([]);
});

test('does not access a mounted target, since the mount may be dead', async () => {
  const list = async () => [{ at: '/t' }] as unknown as Awaited<ReturnType<Mounter['list']>>;
  await createClear('filesystem', { list })('/t', aCall());
  expect(inspectedTargets).toEqual([]);
});

test('an aborted call throws the abort reason and removes nothing', async () => {
  const signal = AbortSignal.abort(new Error('enough'));
  await expect(createClear('filesystem')('/t', { ...aCall(), signal })).rejects.toThrow('enough');
  expect(inspectedTargets).not.toContain('remove /t');
});
