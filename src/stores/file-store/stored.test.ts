import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, onTestFinished, test } from 'vitest';
import { localFiles } from '../local/files.ts';
import { identityText, readIdentity } from './identity.ts';
import { encodeMeta, type Meta, readMeta } from './meta.ts';

/**
 * Records that 0.1 writes beside volumes. The types in memory may change; these lines never do, because every later version must read them.
 */
const lines = readFileSync(new URL('fixtures/meta-version-1.jsonl', import.meta.url), 'utf8')
  .split('\n')
  .slice(0, -1);

const plain = {
  id: 'sv1-00000000-0000-4000-8000-000000000001',
  name: 'plain',
  access: 'filesystem',
  labels: {},
  requestId: 'request plain',
  createdAt: 1_700_000_000_000,
  revision: 1,
  instance: 'instance-1',
  bytes: undefined,
  enforce: false,
};
const deleted = { ...plain, revision: 4, deletedAt: 1_700_000_001_000 };
const expiry = { retention: 604_800_000, owner: 'instance-1' };
const observation = { by: 'instance-2', at: 60_000 };
const records = [
  plain,
  {
    ...plain,
    name: 'full',
    labels: { a: "o'hara é", 'stowage.dev/ephemeral': 'true' },
    bytes: 2n ** 62n,
    enforce: true,
    unused: true,
  },
  { ...plain, name: 'raw', access: 'block', bytes: 0n },
  { ...plain, name: 'old', revision: 2, movingTo: 'new' },
  { ...plain, name: 'nested', path: 'team-a/nested' },
  deleted,
  { ...deleted, expiry },
  { ...deleted, expiry: { ...expiry, expiresAt: 1_700_604_801_000, seen: { ...observation, by: 'instance-1' } } },
  {
    ...deleted,
    expiry: { ...expiry, expiresAt: 1_700_604_801_000, successor: { ...observation, since: 1_701_000_000_000 } },
  },
] as unknown as readonly Meta[];

function writeTemporaryFile(text: string): string {
  const folder = mkdtempSync(join(tmpdir(), 'stowage-record-'));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, 'file'), text);
  return join(folder, 'file');
}

describe('the record of a volume', () => {
  test('has the same bytes as in 0.1', () => {
    expect(records.map((meta) => encodeMeta(meta))).toEqual(lines.map((line) => `${line}\n`));
  });

  test.each(lines.map((line, index) => [line, records[index]] as const))(
    'is read with the same meaning: %s',
    async (line, meta) => {
      expect(await readMeta(localFiles, writeTemporaryFile(`${line}\n`), 'someone')).toEqual({ state: 'ok', meta });
    },
  );
});

test('store.json keeps the identity and the layout', async () => {
  const uuid = '7c1f0f52-5d0e-4a53-9f4e-0d9f3c5b8a11';
  const text = `{"version":1,"store":"${uuid}","layout":"directory"}\n`;
  expect(identityText(uuid, 'directory')).toBe(text);
  expect(await readIdentity(localFiles, writeTemporaryFile(text))).toEqual({ uuid, layout: 'directory' });
  expect(identityText(uuid, 'image')).toBe(text.replace('directory', 'image'));
});
