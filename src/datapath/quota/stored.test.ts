import { expect, test } from 'vitest';
import { createFakeClock } from '#testing/fakes/clock.ts';
import { createLedger, grantName, readBase, writeBase } from './ledger.ts';
import type { LedgerFiles } from './ledger-files.ts';

/** Files in `.stowage/quota/<volume>`. Nodes of different versions read and write them at the same time. */
const base = '{"version":1,"epoch":7,"used":1048576,"counting":true,"countedAt":1750000000000}\n';
const grant = '{"version":1,"granted":-4096}\n';
const limit = '{"version":1,"bytes":2097152}\n';

function createMemoryFiles(texts: Map<string, string>): LedgerFiles {
  return {
    names: async () => [...texts.keys()],
    read: async (name) => texts.get(name),
    write: async (name, text) => void texts.set(name, text),
    remove: async (name) => void texts.delete(name),
    tryCreate: () => expect.fail(),
    fingerprint: () => expect.fail(),
    touch: () => expect.fail(),
  };
}

const ledgerOf = (files: LedgerFiles) =>
  createLedger({ files, clock: createFakeClock(), signal: new AbortController().signal, member: 'host-1.0', limit: 1 });

test('the quota ledger is byte for byte that of 0.1', async () => {
  const texts = new Map<string, string>();
  const files = createMemoryFiles(texts);
  await writeBase(files, { epoch: 7, used: 1_048_576, counting: true, countedAt: 1_750_000_000_000 });
  await ledgerOf(files).setGrant(7, -4096);
  expect([...texts]).toEqual([
    ['base', base],
    ['grant.7.host-1.0', grant],
  ]);
  expect(grantName(7, 'host-1.0')).toBe('grant.7.host-1.0');
});

test('the quota counts what 0.1 wrote into the ledger', async () => {
  const files = createMemoryFiles(
    new Map([
      ['base', base] as const,
      ['limit', limit] as const,
      ['grant.7.host-1.0', grant] as const,
      ['grant.7.host-2.0', grant] as const,
      ['grant.6.host-2.0', grant] as const,
    ]),
  );
  const baseRecord = { epoch: 7, used: 1_048_576, counting: true, countedAt: 1_750_000_000_000 };
  expect(await readBase(files)).toEqual(baseRecord);
  expect(await ledgerOf(files).refresh()).toMatchObject({ ...baseRecord, limit: 2_097_152, otherGrants: -4096 });
});
